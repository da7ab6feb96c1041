#include "cohort/parallel/common/parameters.h"

#include <sstream>
#include <unordered_map>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

template <typename Dict>
std::vector<NamedTensor> distinct(const Dict& named, std::map<std::string, std::string>* aliases) {
  std::vector<NamedTensor> out;
  std::unordered_map<const void*, std::string> seen;
  for (const auto& item : named) {
    if (!item.value().defined()) continue;
    const auto [place, is_new] = seen.emplace(item.value().unsafeGetTensorImpl(), item.key());
    if (is_new) out.push_back({item.key(), item.value()});
    else if (aliases) (*aliases)[item.key()] = place->second;
  }
  return out;
}

}  // namespace

std::vector<NamedTensor> distinct_parameters(const torch::nn::Module& module, std::map<std::string, std::string>* aliases) {
  return distinct(module.named_parameters(/*recurse=*/true), aliases);
}

std::vector<NamedTensor> distinct_buffers(const torch::nn::Module& module, std::map<std::string, std::string>* aliases) {
  return distinct(module.named_buffers(/*recurse=*/true), aliases);
}

std::vector<NamedTensor> trained_parameters(const std::vector<NamedTensor>& all) {
  std::vector<NamedTensor> trained;
  for (const NamedTensor& parameter : all) {
    if (!parameter.tensor.requires_grad()) continue;
    if (!parameter.tensor.is_contiguous())
      fail(ErrorCode::kBadInput, "parameter ", parameter.name, " is not contiguous; make it contiguous before it is trained");
    trained.push_back(parameter);
  }
  return trained;
}

int64_t total_bytes(const std::vector<NamedTensor>& tensors) {
  int64_t bytes = 0;
  for (const NamedTensor& named : tensors) bytes += static_cast<int64_t>(named.tensor.nbytes());
  return bytes;
}

std::string signature(const std::vector<NamedTensor>& parameters) {
  std::ostringstream out;
  for (const NamedTensor& parameter : parameters)
    out << parameter.name << ' ' << parameter.tensor.scalar_type() << ' ' << parameter.tensor.sizes()
        << (parameter.tensor.requires_grad() ? " trained\n" : " frozen\n");
  return out.str();
}

}  // namespace cohort
