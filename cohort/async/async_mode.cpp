#include "cohort/async/async_mode.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/max.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "cohort/parallel/common/flat_piece.h"

namespace cohort {

HandedOver WorkerSide::work(const OrderedTicket& order) {
  const Ticket ticket = order.tickets.ticket_of(order.step, order.share);
  return hand_over(ticket, order.compute(ticket, order.numbers.learning_rate), order.numbers);
}

ServedModel::ServedModel(const torch::nn::Module& module)
    : trained(trained_parameters(distinct_parameters(module))), buffers(distinct_buffers(module)) {
  for (const auto& [name, tensor] : trained) {
    weights.push_back(alias_of(tensor.detach(), 0, {tensor.numel()}));
    gradient_bytes += static_cast<int64_t>(tensor.nbytes());
  }
  num_bytes = gradient_bytes + total_bytes(buffers);
}

std::vector<at::Tensor> ServedModel::tensors() const {
  std::vector<at::Tensor> out = weights;
  for (const NamedTensor& buffer : buffers) out.push_back(buffer.tensor.detach());
  return out;
}

std::vector<at::Tensor> ServedModel::copy_of_weights() const { return copies(weights); }

std::vector<at::Tensor> ServedModel::copy_of_buffers() const {
  std::vector<at::Tensor> out;
  for (const NamedTensor& buffer : buffers) out.push_back(buffer.tensor.detach().clone());
  return out;
}

void ServedModel::set_weights(const std::vector<at::Tensor>& values) const {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < weights.size(); ++i) weights[i].copy_(values[i]);
}

void ServedModel::set_buffers(const std::vector<at::Tensor>& values) const {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < buffers.size(); ++i) buffers[i].tensor.detach().copy_(values[i]);
}

void mix_tensors(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from, double part) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < to.size(); ++i) {
    if (part == 1) to[i].copy_(from[i]);
    else if (to[i].is_floating_point()) to[i].add_(from[i] - to[i], part);
    else to[i].copy_(at::max(to[i], from[i]));
  }
}

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& tensor : tensors) out.push_back(tensor.detach().clone());
  return out;
}

std::vector<at::Tensor> empty_copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& tensor : tensors) out.push_back(at::empty_like(tensor));
  return out;
}

}  // namespace cohort
