#pragma once
// Which of several servers of one model has which of its tensors: sync=async:servers=S.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "cohort/parallel/parameters.h"

namespace cohort {

/// One of them; by default the only one.
struct ServerPart {
  int server = 0, num_servers = 1;
};

/// Of each trained parameter the server that has it. Whole parameters, the largest first, each to the server with the fewest bytes so far;
/// the same for the same shapes in every process.
std::vector<int> servers_of(const std::vector<NamedTensor>& trained, int num_servers);

/// Error(kBadInput) where a server would have none.
void check_servers(const std::vector<NamedTensor>& trained, int num_servers, const std::string& sync);

/// Of tensors that are one a parameter, and then others (buffers, say), those of one server: the others are server 0's.
std::vector<at::Tensor> tensors_of_server(const std::vector<at::Tensor>& all, const std::vector<int>& servers, int server);

}  // namespace cohort
