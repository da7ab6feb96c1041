#include "cohort/parallel/watch/gradient_hook.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

class GradientHook : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit GradientHook(std::function<void(const at::Tensor&)> callback) : callback_(std::move(callback)) {}
  void operator()(const torch::autograd::Variable& variable) override {
    at::NoGradGuard no_grad;
    callback_(variable);
  }

 private:
  std::function<void(const at::Tensor&)> callback_;
};

}  // namespace

void check_no_gradient_hook(const NamedTensor& parameter) {
  if (torch::autograd::impl::post_acc_grad_hooks(parameter.tensor))
    fail(ErrorCode::kBadInput, "parameter ", parameter.name,
         " already has a post-accumulate hook; a model can be in one Parallel (strategy, DataParallel) at a time");
}

void set_gradient_hook(const NamedTensor& parameter, std::function<void(const at::Tensor&)> callback) {
  check_no_gradient_hook(parameter);
  torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, std::make_unique<GradientHook>(std::move(callback)));
}

void remove_gradient_hook(const NamedTensor& parameter) { torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, nullptr); }

}  // namespace cohort
