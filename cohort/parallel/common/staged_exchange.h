#pragma once
// Exchanges of flat tensors on any device: directly where the group exchanges that device, else through copies in host memory, which any
// backend supports and which lets ranks share a device.
//
// Through the host: start copies the input, which waits for the device, and starts the group's exchange of the copy; wait() completes it
// and copies the result back. The caller's thread makes the group's calls, in its order. Additional cost: a copy of input and output over
// the device's link, and both in host memory until wait().

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "cohort/comm/group.h"

namespace cohort {

/// `num_elements` zeros, 1-d, for exchanges: from Group::allocate() in host memory, else an ordinary tensor of the device. Collective.
at::Tensor exchanged_zeros(Group& group, int64_t num_elements, at::TensorOptions options);

/// Like Group's functions of the same names. Results through the host are available only after wait().
std::unique_ptr<Pending> start_all_reduce_sum(Group& group, at::Tensor flat, std::string what);
std::unique_ptr<Pending> start_reduce_scatter_sum(Group& group, at::Tensor output, at::Tensor input, std::string what);
std::unique_ptr<Pending> start_all_gather(Group& group, at::Tensor output, at::Tensor input, std::string what);
void broadcast(Group& group, at::Tensor tensor, int root, const std::string& what);

}  // namespace cohort
