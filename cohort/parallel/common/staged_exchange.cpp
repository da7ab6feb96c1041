#include "cohort/parallel/common/staged_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <utility>

namespace cohort {
namespace {

/// The exchange of copies in host memory.
class StagedPending : public Pending {
 public:
  StagedPending(std::unique_ptr<Pending> exchange, at::Tensor output, at::Tensor here)
      : exchange_(std::move(exchange)), output_(std::move(output)), here_(std::move(here)) {}

  void wait() override {
    if (!here_.defined()) return;
    exchange_->wait();
    const at::NoGradGuard no_grad;
    output_.copy_(here_.view_as(output_));
    here_ = at::Tensor();
  }

 private:
  std::unique_ptr<Pending> exchange_;
  at::Tensor output_, here_;
};

at::Tensor in_host_memory(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return tensor.detach().cpu();
}

/// Uninitialized host memory.
at::Tensor host_space_for(const at::Tensor& tensor) { return at::empty({tensor.numel()}, tensor.scalar_type()); }

}  // namespace

at::Tensor exchanged_zeros(Group& group, int64_t num_elements, at::TensorOptions options) {
  return options.device().is_cpu() ? group.allocate(num_elements, options) : at::zeros({num_elements}, options);
}

std::unique_ptr<Pending> start_all_reduce_sum(Group& group, at::Tensor flat, std::string what) {
  if (group.exchanges(flat.device())) return group.start_all_reduce_sum(std::move(flat), std::move(what));
  at::Tensor here = in_host_memory(flat);
  auto exchange = group.start_all_reduce_sum(here, std::move(what));
  return std::make_unique<StagedPending>(std::move(exchange), std::move(flat), std::move(here));
}

std::unique_ptr<Pending> start_reduce_scatter_sum(Group& group, at::Tensor output, at::Tensor input, std::string what) {
  if (group.exchanges(input.device())) return group.start_reduce_scatter_sum(std::move(output), std::move(input), std::move(what));
  at::Tensor here = host_space_for(output);
  auto exchange = group.start_reduce_scatter_sum(here, in_host_memory(input), std::move(what));
  return std::make_unique<StagedPending>(std::move(exchange), std::move(output), std::move(here));
}

std::unique_ptr<Pending> start_all_gather(Group& group, at::Tensor output, at::Tensor input, std::string what) {
  if (group.exchanges(input.device())) return group.start_all_gather(std::move(output), std::move(input), std::move(what));
  at::Tensor here = host_space_for(output);
  auto exchange = group.start_all_gather(here, in_host_memory(input), std::move(what));
  return std::make_unique<StagedPending>(std::move(exchange), std::move(output), std::move(here));
}

void broadcast(Group& group, at::Tensor tensor, int root, const std::string& what) {
  if (group.exchanges(tensor.device())) return group.broadcast(std::move(tensor), root, what);
  const at::Tensor here = in_host_memory(tensor);
  group.broadcast(here, root, what);
  const at::NoGradGuard no_grad;
  tensor.copy_(here);
}

}  // namespace cohort
