#include "cohort/parallel/common/initial_broadcast.h"

#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <map>
#include <vector>

#include "cohort/parallel/common/parameters.h"

namespace cohort {

void broadcast_model(const torch::nn::Module& module, Group& group) {
  if (group.size() == 1) return;
  at::NoGradGuard no_grad;
  std::map<at::ScalarType, std::vector<at::Tensor>> by_type;
  for (const NamedTensor& parameter : distinct_parameters(module)) by_type[parameter.tensor.scalar_type()].push_back(parameter.tensor);
  for (const NamedTensor& buffer : distinct_buffers(module)) by_type[buffer.tensor.scalar_type()].push_back(buffer.tensor);
  for (auto& [type, tensors] : by_type) {
    std::vector<at::Tensor> flattened;
    for (const at::Tensor& tensor : tensors) flattened.push_back(tensor.detach().reshape({-1}));
    at::Tensor flat = group.exchangeable(at::cat(flattened));
    group.broadcast(flat, 0, "the initial parameters");
    int64_t offset = 0;
    for (at::Tensor& tensor : tensors) {
      tensor.detach().copy_(flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
      offset += tensor.numel();
    }
  }
}

}  // namespace cohort
