#pragma once
// Exchanges of flat tensors, wherever they lie: Group's own where the group exchanges the tensor's device, else through copies in this
// host's memory (any backend can do that, and two ranks may share one device).
//
// Through the host: start copies the input there, which waits for what the device was asked for so far, and starts the group's exchange of
// the copy; wait() ends that and copies the result back. The calls of the group are made by the caller's thread, in the caller's order.
// Cost beyond the exchange's: a copy of the input and one of the output over the device's link, and both in host memory until wait().

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "cohort/comm/group.h"

namespace cohort {

/// `num_elements` zeros, 1-d, to be exchanged: Group::allocate()'s in host memory, else an ordinary tensor of the device. Collective.
at::Tensor exchanged_zeros(Group& group, int64_t num_elements, at::TensorOptions options);

/// As Group's functions of the same names. Of an exchange through the host the result is there after wait() alone.
std::unique_ptr<Pending> start_all_reduce_sum(Group& group, at::Tensor flat, std::string what);
std::unique_ptr<Pending> start_reduce_scatter_sum(Group& group, at::Tensor output, at::Tensor input, std::string what);
std::unique_ptr<Pending> start_all_gather(Group& group, at::Tensor output, at::Tensor input, std::string what);
void broadcast(Group& group, at::Tensor tensor, int root, const std::string& what);

}  // namespace cohort
