#include "cohort/train/trial/trial_evaluate.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>

#include "cohort/models/metric/average_precision.h"
#include "cohort/train/batch_tensors.h"

namespace cohort {
namespace {

/// Samples computed at once. By the chain: large enough for the matrix product, small enough that activations stay in the cache. By the
/// graph: as train's evaluation has it, activations of convolutions are large.
constexpr int64_t kChainChunk = 500, kGraphChunk = 250;

LossSums evaluate_graph(LayerGraph& model, const TrialBatch& batch) {
  const at::Tensor output = model.forward(batch.input());
  const at::Tensor logits = output.reshape({-1, output.size(-1)}), target = batch.target().reshape({-1});
  return {at::cross_entropy_loss(logits, target, {}, at::Reduction::Sum).item<double>(),
          static_cast<double>(target.numel()) - logits.argmax(-1).eq(target).sum().item<double>()};
}

LossSums evaluate_labels(LayerGraph& model, const TrialBatch& batch, int64_t first, LabelScores& scores) {
  const at::Tensor output = model.forward(batch.input()), target = batch.target();
  const double loss = mean_loss(model, output, target).item<double>();
  scores.add(first, output, target);
  return {loss * static_cast<double>(target.numel()), output.gt(0).reshape_as(target).ne(target.gt(0)).sum().item<double>()};
}

}  // namespace

TrialEvaluation evaluate_trial(LayerGraph& model, DenseChain* chain, const TrialSamples& samples, int64_t num_samples, Group& team) {
  const at::NoGradGuard no_grad;
  const int64_t chunk = chain ? kChainChunk : kGraphChunk, num_chunks = (num_samples - 1) / chunk + 1;
  // Loss and wrong targets of each chunk; zero where another rank counts it.
  const at::Tensor sums = at::zeros({2 * num_chunks}, at::kDouble);
  double* const sum = sums.mutable_data_ptr<double>();
  TrialBatch batch;
  const DataShape& shape = samples.shape();
  LabelScores scores(num_samples, shape.num_classes);
  if (!chain) model.eval();
  for (int64_t i = team.rank(); i < num_chunks; i += team.size()) {
    batch.view(samples, i * chunk, std::min(num_samples, (i + 1) * chunk));
    const LossSums of_chunk = chain          ? chain->evaluate(batch.input(), batch.target())
                              : shape.labels ? evaluate_labels(model, batch, i * chunk, scores)
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
