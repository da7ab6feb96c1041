#include "cohort/trials/trial_evaluate.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>

#include "cohort/models/graph/layer_graph.h"
#include "cohort/models/metric/metrics.h"
#include "cohort/parallel/common/vector_loops.h"
#include "cohort/train/model/batch_tensors.h"

namespace cohort {
namespace {

/// Samples computed at once. By the chain: large enough for the matrix product, small enough that activations stay in the cache. By the
/// graph: as train's evaluation has it, activations of convolutions are large.
constexpr int64_t kChainChunk = 500, kGraphChunk = 250;

/// Classes that are likelier than the target: above it, or as high and before it. NaN is likelier than all.
COHORT_VECTOR_LOOP int64_t num_likelier(const float* logits, int64_t target, int64_t num_classes) {
  const float of_target = logits[target];
  int32_t count = 0;  // As wide as the floats: a vector of them counts at once.
  for (int64_t j = 0; j < target; ++j) count += !(logits[j] < of_target);
  for (int64_t j = target + 1; j < num_classes; ++j) count += !(logits[j] <= of_target);
  return count;
}

LossSums evaluate_graph(LayerGraph& model, const TrialBatch& batch) {
  const at::Tensor output = model.forward(batch.input());
  const at::Tensor logits = output.reshape({-1, output.size(-1)}), target = batch.target().reshape({-1});
  return {at::cross_entropy_loss(logits, target, {}, at::Reduction::Sum).item<double>(),
          static_cast<double>(count_wrong_targets(logits, target))};
}

LossSums evaluate_labels(LayerGraph& model, const TrialBatch& batch, int64_t first, LabelScores& scores) {
  const at::Tensor output = model.forward(batch.input()), target = batch.target();
  const double loss = mean_loss(model, output, target).item<double>();
  scores.add(first, output, target);
  return {loss * static_cast<double>(target.numel()), output.gt(0).reshape_as(target).ne(target.gt(0)).sum().item<double>()};
}

}  // namespace

int64_t count_wrong_targets(const at::Tensor& logits, const at::Tensor& target) {
  const at::Tensor rows = logits.contiguous(), labels = target.contiguous();
  const int64_t num_classes = rows.size(1);
  const float* row = rows.const_data_ptr<float>();
  const int64_t* const label = labels.const_data_ptr<int64_t>();
  int64_t num_wrong = 0;
  for (int64_t i = 0; i < rows.size(0); ++i, row += num_classes)
    num_wrong += label[i] < 0 || label[i] >= num_classes || num_likelier(row, label[i], num_classes) > 0;
  return num_wrong;
}

TrialEvaluation evaluate_trial(LayerGraph& model, DenseChain* chain, const TrialSamples& samples, int64_t num_samples, Group& team) {
  const at::NoGradGuard no_grad;
  const int64_t chunk = chain ? kChainChunk : kGraphChunk, num_chunks = (num_samples - 1) / chunk + 1;
  // Loss and wrong targets of each chunk; zero where another rank counts it.
  const at::Tensor sums = at::zeros({2 * num_chunks}, at::kDouble);
  double* const sum = sums.mutable_data_ptr<double>();
  TrialBatch batch;
  const DataShape& shape = samples.shape();
  LabelScores scores(num_samples, shape.num_classes);
  const ByteRows* const bytes = chain ? samples.bytes() : nullptr;
  if (bytes) chain->read_weight_for(*bytes);
  if (!chain) model.eval();
  for (int64_t i = team.rank(); i < num_chunks; i += team.size()) {
    const int64_t begin = i * chunk, end = std::min(num_samples, begin + chunk);
    batch.view(samples, begin, end);
    const LossSums of_chunk = bytes          ? chain->evaluate(*bytes, begin, end, batch.target())
                              : chain        ? chain->evaluate(batch.input(), batch.target())
                              : shape.labels ? evaluate_labels(model, batch, begin, scores)
                                             : evaluate_graph(model, batch);
    sum[2 * i] = of_chunk.loss;
    sum[2 * i + 1] = of_chunk.num_wrong;
  }
  if (!chain) model.train();
  if (team.size() > 1) team.all_reduce_sum(sums, "the sums of an evaluation");
  double loss = 0, num_wrong = 0;
  for (int64_t i = 0; i < num_chunks; ++i) {
    loss += sum[2 * i];
    num_wrong += sum[2 * i + 1];
  }
  const auto num_targets = static_cast<double>(num_samples * shape.targets_per_sample());
  TrialEvaluation evaluation{loss / num_targets, num_wrong / num_targets};
  if (shape.labels) evaluation.precision = scores.mean_average_precision(team);
  return evaluation;
}

}  // namespace cohort
