#include "cohort/models/loss/mean_squared_error.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/mse_loss.h>

#include "cohort/base/fail.h"
#include "cohort/models/graph/model_errors.h"

namespace cohort {

at::Tensor mean_squared_error(const at::Tensor& output, const at::Tensor& target) {
  if (!output.defined() || output.numel() != target.numel() || !target.is_floating_point())
    fail(ErrorCode::kBadInput, "the mean squared error got the output ", describe_form(output), " and the targets ", describe_form(target),
         "; let the last layer give as many numbers for a sample as the data has to predict (COHORT_MODEL: options.data().num_classes)");
  return at::mse_loss(output.to(at::kFloat).reshape_as(target), target, at::Reduction::Mean);
}

}  // namespace cohort
