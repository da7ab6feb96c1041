#include "cohort/parallel/buffer_average.h"

#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/grad_mode.h>

namespace cohort {

BufferAverage::BufferAverage(const torch::nn::Module& module, Group group) : group_(std::move(group)) {
  for (NamedTensor& buffer : distinct_buffers(module))
    if (buffer.tensor.is_floating_point() && buffer.tensor.numel() > 0) buffers_.push_back(std::move(buffer));
}

void BufferAverage::average(double share) {
  if (buffers_.empty() || group_.size() == 1) return;
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> pieces;
  for (const NamedTensor& buffer : buffers_) pieces.push_back(buffer.tensor.reshape({-1}).to(at::kFloat).mul(share));
  const at::Tensor flat = group_.exchangeable(at::cat(pieces));
  group_.all_reduce_sum(flat, "the buffers")->wait();
  int64_t offset = 0;
  for (const NamedTensor& buffer : buffers_) {
    buffer.tensor.copy_(flat.narrow(0, offset, buffer.tensor.numel()).view(buffer.tensor.sizes()));
    offset += buffer.tensor.numel();
  }
}

}  // namespace cohort
