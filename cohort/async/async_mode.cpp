#include "cohort/async/async_mode.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/max.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "cohort/base/text/json_fields.h"

namespace cohort {
namespace {

void copy_each(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
}

std::vector<at::Tensor> detached(const std::vector<NamedTensor>& named) {
  std::vector<at::Tensor> out;
  for (const auto& [name, tensor] : named) out.push_back(tensor.detach());
  return out;
}

}  // namespace

void ModelVersion::mark_pull(Assignment& assignment) const {
  assignment.base_version = version;
  assignment.base_samples = samples;
}

PushOutcome ModelVersion::outcome(const Assignment& assignment, int64_t global_batch) const {
  return {.staleness = version - assignment.base_version,
          .late_steps = static_cast<double>(samples - assignment.base_samples) / static_cast<double>(global_batch)};
}

void ModelVersion::add_push(const Assignment& assignment) {
  ++version;
  samples += assignment.item.num_samples();
}

ModelVersion ModelVersion::from(const Json& state, const std::string& where) {
  const JsonFields fields(state, where);
  return {.version = fields.natural("version"), .samples = fields.natural("samples")};
}

std::vector<at::Tensor> AsyncMode::empty_push() const { return empty_copies(served_tensors()); }

std::vector<at::Tensor> AsyncWorker::empty_push() const { return empty_copies(pull_buffers()); }

PushData AsyncWorker::work(const AssignedItem& assigned) {
  const WorkItem item = assigned.queue.item_at(assigned.step, assigned.share);
  return make_push(item, assigned.compute(item, assigned.numbers.learning_rate), assigned.numbers);
}

ModelTensors::ModelTensors(const torch::nn::Module& module)
    : trained(trained_parameters(distinct_parameters(module))), buffers(distinct_buffers(module)) {
  for (const auto& [name, tensor] : trained) {
    weights.push_back(alias_of(tensor.detach(), 0, {tensor.numel()}));
    gradient_bytes += static_cast<int64_t>(tensor.nbytes());
  }
  num_bytes = gradient_bytes + total_bytes(buffers);
}

std::vector<at::Tensor> ModelTensors::tensors() const { return joined(weights, detached(buffers)); }

std::vector<at::Tensor> ModelTensors::copy_of_weights() const { return copies(weights); }

std::vector<at::Tensor> ModelTensors::copy_of_buffers() const { return copies(detached(buffers)); }

void ModelTensors::set_weights(const std::vector<at::Tensor>& values) const { copy_each(weights, values); }

void ModelTensors::set_buffers(const std::vector<at::Tensor>& values) const { copy_each(detached(buffers), values); }

void mix_tensors(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from, double weight) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < to.size(); ++i) {
    if (weight == 1) to[i].copy_(from[i]);
    else if (to[i].is_floating_point()) to[i].add_(from[i] - to[i], weight);
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
