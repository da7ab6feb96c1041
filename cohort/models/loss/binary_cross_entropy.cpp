#include "cohort/models/loss/binary_cross_entropy.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>

#include "cohort/base/fail.h"
#include "cohort/models/graph/model_errors.h"

namespace cohort {

at::Tensor binary_cross_entropy(const at::Tensor& output, const at::Tensor& target) {
  if (!output.defined() || output.numel() != target.numel() || !target.is_floating_point())
    fail(ErrorCode::kBadInput, "the binary cross-entropy got the output ", describe_form(output), " and the targets ",
         describe_form(target),
         "; let the last layer give one score for each label of a sample (COHORT_MODEL: options.data().num_classes)");
  // A model in double stays in it: `verify` tells by its gradients whether dividing a batch matters.
  const at::ScalarType type = output.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::binary_cross_entropy_with_logits(output.to(type).reshape_as(target), target.to(type), {}, {}, at::Reduction::Mean);
}

}  // namespace cohort
