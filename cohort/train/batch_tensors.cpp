#include "cohort/train/batch_tensors.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/from_blob.h>

#include "cohort/base/error.h"

namespace cohort {

BatchTensors as_tensors(Batch& batch, const DataShape& shape) {
  std::vector<int64_t> sizes{batch.num_samples};
  sizes.insert(sizes.end(), shape.input.begin(), shape.input.end());
  BatchTensors tensors;
  if (shape.kind == DataShape::Kind::kImage) tensors.input = at::from_blob(batch.values.data(), sizes, at::kFloat);
  else tensors.input = at::from_blob(batch.tokens.data(), sizes, at::kLong);
  std::vector<int64_t> target_sizes{batch.num_samples};
  if (shape.targets_per_sample() > 1 || shape.kind == DataShape::Kind::kText) target_sizes.push_back(shape.targets_per_sample());
  tensors.target = at::from_blob(batch.targets.data(), target_sizes, at::kLong);
  return tensors;
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, bool sum, double label_smoothing) {
  if (logits.numel() / logits.size(-1) != target.numel())
    fail(ErrorCode::kBadInput, "the model's output has ", logits.numel() / logits.size(-1), " rows of ", logits.size(-1),
         " logits, the data has ", target.numel(),
         " targets; the last dimension of the output must be the classes and the others those of the targets");
  return at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), target.reshape({-1}), {},
                                sum ? at::Reduction::Sum : at::Reduction::Mean, /*ignore_index=*/-100, label_smoothing);
}

at::Tensor mean_loss(const LayerGraph& model, const at::Tensor& output, const at::Tensor& target, double label_smoothing) {
  if (!model.loss()) return cross_entropy(output, target, /*sum=*/false, label_smoothing);
  const at::Tensor loss = model.loss()(output, target);
  if (!loss.defined())
    fail(ErrorCode::kBadInput, "the model's own loss gives no tensor; it must give one number, the mean over the samples");
  if (loss.numel() != 1 || !loss.is_floating_point())
    fail(ErrorCode::kBadInput, "the model's own loss gives ", loss.numel(), " numbers of type ", at::toString(loss.scalar_type()),
         "; it must give one floating-point number, the mean over the samples");
  return loss.reshape({});
}

}  // namespace cohort
