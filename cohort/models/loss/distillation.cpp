#include "cohort/models/loss/distillation.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/kl_div.h>
#include <ATen/ops/log_softmax.h>

#include <algorithm>
#include <optional>

#include "cohort/base/fail.h"
#include "cohort/models/graph/model_errors.h"

namespace cohort {

at::Tensor soft_target_loss(const at::Tensor& student, const at::Tensor& teacher, double temperature) {
  const int64_t classes = teacher.size(-1);
  if (!student.defined() || student.dim() == 0 || student.size(-1) != classes || student.numel() != teacher.numel())
    fail(ErrorCode::kBadInput, name_settings("--teacher"), " gives the scores ", describe_form(teacher), ", and the model the output ",
         describe_form(student), "; its last layer must give a score for each class of the data");
  const auto log_probabilities = [&](const at::Tensor& scores) {
    return at::log_softmax(scores.to(at::kFloat).reshape({-1, classes}) / temperature, -1);
  };
  const at::Tensor of_teacher = log_probabilities(teacher.detach());
  const at::Tensor sum = at::kl_div(log_probabilities(student), of_teacher, at::Reduction::Sum, /*log_target=*/true);
  return sum * (temperature * std::min(temperature, 1.0) / static_cast<double>(of_teacher.size(0)));
}

}  // namespace cohort
