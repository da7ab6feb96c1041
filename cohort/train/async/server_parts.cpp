// The longest-processing-time rule of Graham 1969 (sections 2 and 3: at most 4/3 of the least possible maximum): sort by size, give each to
// the least loaded. Parameters stay whole, so that an optimizer's norms and a checkpoint's tensors are one server's; one parameter that is
// most of the model therefore stays most of one server's.
#include "cohort/train/async/server_parts.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {

std::vector<int> servers_of(const std::vector<NamedTensor>& trained, int num_servers) {
  std::vector<size_t> order(trained.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return trained[a].tensor.nbytes() > trained[b].tensor.nbytes(); });
  std::vector<uint64_t> bytes(static_cast<size_t>(num_servers), 0);
  std::vector<int> servers(trained.size(), 0);
  for (const size_t parameter : order) {
    const auto least = std::min_element(bytes.begin(), bytes.end());
    *least += trained[parameter].tensor.nbytes();
    servers[parameter] = static_cast<int>(least - bytes.begin());
  }
  return servers;
}

void check_servers(const std::vector<NamedTensor>& trained, int num_servers, const std::string& sync) {
  if (static_cast<size_t>(num_servers) <= trained.size()) return;
  fail(ErrorCode::kBadInput, name_settings("--layout: sync="), sync, ": a server has whole parameters, and this model trains ",
       trained.size(), "; use servers=", trained.size(), " or fewer");
}

std::vector<at::Tensor> tensors_of_server(const std::vector<at::Tensor>& all, const std::vector<int>& servers, int server) {
  std::vector<at::Tensor> out;
  for (size_t i = 0; i < all.size(); ++i)
    if ((i < servers.size() ? servers[i] : 0) == server) out.push_back(all[i]);
  return out;
}

}  // namespace cohort
