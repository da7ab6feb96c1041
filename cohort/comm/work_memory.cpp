#include "cohort/comm/work_memory.h"

#include <ATen/ops/empty.h>

#include "cohort/comm/transport/call_arguments.h"

namespace cohort {

void in_place(CollectiveWork& work, Op op, const at::Tensor& tensor, bool writes) {
  at::Tensor memory = plain(tensor);
  Call& call = work.call();
  call.op = op;
  call.type = tensor.scalar_type();
  call.count = static_cast<size_t>(tensor.numel());
  call.input = memory.data_ptr();
  call.output = writes ? memory.data_ptr() : nullptr;
  if (writes && !is_plain(tensor)) work.deliver([tensor = tensor.detach(), memory] { tensor.copy_(memory); });
  work.keep(std::move(memory));
}

at::Tensor writes(CollectiveWork& work, const at::Tensor& tensor) {
  at::Tensor memory = plain_room(tensor);
  work.call().type = tensor.scalar_type();
  work.call().output = memory.data_ptr();
  if (!is_plain(tensor)) work.deliver([tensor = tensor.detach(), memory] { tensor.copy_(memory); });
  work.keep(memory);
  return memory;
}

at::Tensor writes(CollectiveWork& work, const std::vector<at::Tensor>& tensors) {
  at::Tensor memory = joined_view(tensors);
  if (!memory.defined()) {
    int64_t count = 0;
    for (const at::Tensor& tensor : tensors) count += tensor.numel();
    memory = at::empty({count}, tensors[0].options().requires_grad(false));
    work.deliver([tensors, memory] { split_into(tensors, memory); });
  }
  work.call().type = memory.scalar_type();
  work.call().output = memory.data_ptr();
  work.keep(memory);
  return memory;
}

void reads(CollectiveWork& work, at::Tensor memory, const at::Tensor& output, int rank) {
  if (output.defined()) {
    const char *in = static_cast<const char*>(memory.data_ptr()), *out = static_cast<const char*>(output.data_ptr());
    const bool overlap = in < out + output.nbytes() && out < in + memory.nbytes();
    const bool own_place = work.call().op == Op::kAllGather && in == out + static_cast<size_t>(rank) * memory.nbytes();
    if (overlap && !own_place) memory = memory.clone();
  }
  work.call().type = memory.scalar_type();
  work.call().input = memory.data_ptr();
  work.keep(std::move(memory));
}

}  // namespace cohort
