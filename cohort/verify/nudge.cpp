#include "cohort/verify/nudge.h"

#include <ATen/ops/arange.h>
#include <torch/csrc/autograd/grad_mode.h>

namespace cohort {

void nudge_weights(torch::nn::Module& model, double unit) {
  at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : model.parameters()) {
    if (!parameter.is_floating_point()) continue;
    // In double: at::where() of two numbers would round them to fp32.
    const at::Tensor up = at::arange(parameter.numel()).remainder(3).eq(0).view(parameter.sizes()).to(at::kDouble);
    parameter.mul_(up.mul(2 * unit).add(1 - unit).to(parameter.scalar_type()));
  }
}

}  // namespace cohort
