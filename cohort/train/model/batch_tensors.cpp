#include "cohort/train/model/batch_tensors.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/job/config.h"
#include "cohort/job/specs/small_specs.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/models/graph/model_errors.h"
#include "cohort/train/model/precision.h"

namespace cohort {

namespace {

[[noreturn]] void fail_in_loss(const std::string& title, const char* loss, const at::Tensor& output, const at::Tensor& target,
                               const std::exception& error) {
  fail(ErrorCode::kBadInput, title, ": ", loss, " failed on the output ", describe_tensor(output), " and the targets ",
       describe_tensor(target), "; make the sizes and types of the two fit (", quote(error), ")");
}

}  // namespace

BatchTensors as_tensors(Batch& batch, const DataShape& shape) {
  std::vector<int64_t> sizes{batch.num_samples};
  sizes.insert(sizes.end(), shape.input.begin(), shape.input.end());
  BatchTensors tensors;
  if (shape.kind == DataShape::Kind::kImage) tensors.input = at::from_blob(batch.values.data(), sizes, at::kFloat);
  else tensors.input = at::from_blob(batch.tokens.data(), sizes, at::kLong);
  if (shape.has_numbers()) {
    tensors.target = at::from_blob(batch.numbers.data(), {batch.num_samples, shape.targets_per_sample()}, at::kFloat);
    return tensors;
  }
  std::vector<int64_t> target_sizes{batch.num_samples};
  if (shape.targets_per_sample() > 1 || shape.kind == DataShape::Kind::kText) target_sizes.push_back(shape.targets_per_sample());
  tensors.target = at::from_blob(batch.targets.data(), target_sizes, at::kLong);
  return tensors;
}

at::Tensor input_batch(const DataSource& source, int64_t first, int64_t count) {
  std::vector<int64_t> indices(static_cast<size_t>(std::max<int64_t>(0, std::min(count, source.num_samples() - first))));
  std::iota(indices.begin(), indices.end(), first);
  Batch batch;
  source.read(indices, batch);
  return as_tensors(batch, source.shape()).input.clone();
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, bool sum, double label_smoothing, const std::string& title) {
  if (!logits.defined() || logits.dim() == 0 || logits.size(-1) == 0)
    fail(ErrorCode::kBadInput, title, ": the loss got the output ", describe_tensor(logits),
         ", which has no scores of classes for the targets, ", describe_tensor(target),
         "; the last dimension of the output must be the classes");
  const int64_t classes = logits.size(-1), rows = logits.numel() / classes;
  if (rows != target.numel())
    fail(ErrorCode::kBadInput, title, ": the loss got the output ", describe_tensor(logits), ", which is ", rows, " rows of ", classes,
         " logits, and the data has ", target.numel(), " targets, ", describe_tensor(target),
         "; the last dimension of the output must be the classes and the others those of the targets");
  try {
    return at::cross_entropy_loss(logits.reshape({-1, classes}), target.reshape({-1}), {}, sum ? at::Reduction::Sum : at::Reduction::Mean,
                                  /*ignore_index=*/-100, label_smoothing);
  } catch (const c10::Error& error) {
    if (!is_mismatch_error(error)) throw;
    const int64_t last = target.numel() > 0 ? target.max().item<int64_t>() : 0;
    if (last >= classes)
      fail(ErrorCode::kBadInput, title, ": the loss got the target ", last, ", and the output, ", describe_tensor(logits),
           ", has scores of ", classes, " classes, 0 to ", classes - 1,
           "; let the last layer give a score for each class of the data (COHORT_MODEL: ", "options.data().num_classes) (", quote(error),
           ")");
    fail_in_loss(title, "the cross-entropy", logits, target, error);
  }
}

at::Tensor mean_loss(const LayerGraph& model, const at::Tensor& output, const at::Tensor& target, double label_smoothing) {
  if (!model.loss()) return cross_entropy(output, target, /*sum=*/false, label_smoothing, model.title());
  at::Tensor loss;
  try {
    loss = model.loss()(output, target);
  } catch (const std::exception& error) {
    if (!is_mismatch_error(error) && !is_user_exception(error)) throw;
    fail_in_loss(model.title(), "the model's own loss", output, target, error);
  }
  if (!loss.defined())
    fail(ErrorCode::kBadInput, model.title(), ": the model's own loss gives no tensor; it must give one number, the mean over the samples");
  if (loss.numel() != 1 || !loss.is_floating_point())
    fail(ErrorCode::kBadInput, model.title(), ": the model's own loss gives ", loss.numel(),
         loss.numel() == 1 ? " number of type " : " numbers of type ", at::toString(loss.scalar_type()),
         "; it must give one floating-point number, the mean over the samples");
  return loss.reshape({});
}

LossRules loss_rules(const Config& config, const DataShape& shape) {
  return {.label_smoothing = label_smoothing_over_all(config.label_smoothing, config.label_smoothing_over, shape.num_classes)};
}

at::Tensor loss_of(const LayerGraph& model, const at::Tensor& output, const at::Tensor& target, double weight, const LossRules& rules) {
  if (target.size(0) == 0) return output.sum() * 0;
  const at::Tensor logits = for_loss(output);
  at::Tensor mean = rules.mean ? rules.mean(logits, target) : mean_loss(model, logits, target, rules.label_smoothing);
  if (rules.add) mean = rules.add(mean, logits);
  check_has_gradient(model, logits, mean);
  return weight == 1 ? mean : mean * weight;
}

void check_has_gradient(const LayerGraph& model, const at::Tensor& output, const at::Tensor& loss) {
  if (loss.requires_grad()) return;
  const std::string advice = "there is no detach(), item(), argmax() or NoGradGuard, and no tensor is made anew of numbers";
  if (!output.requires_grad())
    fail(ErrorCode::kBadInput, model.title(), ": its output, ", describe_tensor(output),
         ", is detached from its weights, so the loss has no gradient; see that on the way from the weights to the output ", advice);
  fail(ErrorCode::kBadInput, model.title(), ": the model's own loss is detached from the output, ", describe_tensor(output),
       ", so it has no gradient; see that in the loss ", advice);
}

}  // namespace cohort
