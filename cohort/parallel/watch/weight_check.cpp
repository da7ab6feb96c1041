#include "cohort/parallel/watch/weight_check.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string_view>

#include "cohort/base/fail.h"
#include "cohort/parallel/common/agreement.h"

namespace cohort {
namespace {

constexpr size_t kParametersEach = 4;
constexpr int64_t kElementsEach = 8;
constexpr uint64_t kStepsOnDevice = 64;
constexpr uint64_t kPrime = 0x9e3779b97f4a7c15;

uint64_t mixed(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * kPrime;
  return hash ^ hash >> 29;
}

uint64_t element(const at::Tensor& values, int64_t index) {
  const auto bytes = static_cast<size_t>(values.element_size());
  uint64_t word = 0;
  std::memcpy(&word, static_cast<const char*>(values.const_data_ptr()) + static_cast<size_t>(index) * bytes, std::min(bytes, sizeof word));
  return word;
}

bool is_readable(const at::Tensor& tensor) {
  return tensor.numel() > 0 && tensor.is_contiguous() && tensor.has_storage() && tensor.storage().nbytes() > 0;
}

}  // namespace

WeightCheck::WeightCheck(Group& group, std::vector<NamedTensor> parameters) : parameters_(std::move(parameters)) {
  std::erase_if(parameters_, [](const NamedTensor& one) { return one.tensor.numel() == 0; });
  const std::string device = parameters_.empty() ? "" : c10::DeviceTypeName(parameters_.front().tensor.device().type());
  const std::string mine = concat(at::get_cpu_capability(), " ", at::get_num_threads(), " ", device);
  const std::vector<std::string> all = group.all_gather_text(mine, "how weights are computed");
  is_on_ = !parameters_.empty() && std::all_of(all.begin(), all.end(), [&](const std::string& other) { return other == mine; });
}

int WeightCheck::next() {
  if (!is_on_) return 0;
  const uint64_t look = num_looks_++;
  uint64_t hash = kPrime;
  for (size_t i = 0; i < std::min(kParametersEach, parameters_.size()); ++i) {
    at::Tensor values = parameters_[(look * kParametersEach + i) % parameters_.size()].tensor.detach();
    if (!is_readable(values)) continue;
    const int64_t count = std::min(kElementsEach, values.numel());
    // Strides by the golden ratio come everywhere.
    const auto begin = static_cast<int64_t>(look * kPrime % static_cast<uint64_t>(values.numel() - count + 1));
    if (!values.is_cpu()) {
      if (look % kStepsOnDevice != 0) continue;
      values = values.view({-1}).narrow(0, begin, count).cpu();
    }
    for (int64_t j = 0; j < count; ++j) hash = mixed(hash, element(values, values.numel() == count ? j : begin + j));
  }
  return static_cast<int>(hash >> 58);
}

std::string text_of_values(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().cpu().contiguous();
  const auto* const begin = values.numel() > 0 ? static_cast<const char*>(values.const_data_ptr()) : "";
  return concat("values of hash ", std::hash<std::string_view>()({begin, values.nbytes()}));
}

void assert_same_weights(const torch::nn::Module& module, Group group) {
  std::string text;
  std::vector<NamedTensor> all = distinct_parameters(module);
  for (NamedTensor& buffer : distinct_buffers(module))
    if (buffer.tensor.is_floating_point()) all.push_back(std::move(buffer));
  for (const NamedTensor& one : all) {
    if (one.tensor.numel() > 0 && (!one.tensor.has_storage() || one.tensor.storage().nbytes() == 0)) continue;
    text += concat(one.name, ", ", text_of_values(one.tensor), "\n");
  }
  check_same_text(group, text, "the model's weights",
                  "weights that were the same stay so where all ranks step with the same gradients, optimizer and learning rate");
}

}  // namespace cohort
