#include "cohort/parallel/common/agreement.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <string_view>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

/// The most frequent text; the lowest rank's in a tie.
const std::string& majority(const std::vector<std::string>& texts) {
  std::map<std::string, int> votes;
  for (const std::string& text : texts) ++votes[text];
  const std::string* best = &texts.front();
  for (const std::string& text : texts)
    if (votes[text] > votes[*best]) best = &text;
  return *best;
}

}  // namespace

void check_same_text(Group& group, const std::string& text, const std::string& what, const std::string& advice) {
  // Digests suffice when all ranks agree, which is nearly always.
  const std::string digest = concat(std::hash<std::string>()(text), "/", text.size());
  const std::vector<std::string> digests = group.all_gather_text(digest, what);
  if (std::all_of(digests.begin(), digests.end(), [&](const std::string& other) { return other == digests.front(); })) return;

  const std::vector<std::string> texts = group.all_gather_text(text, what);
  const std::string& reference = majority(texts);
  const std::vector<std::string> expected = split(reference, '\n');
  std::vector<std::string> complaints;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank] == reference) continue;
    const std::vector<std::string> found = split(texts[rank], '\n');
    const auto line = [](const std::vector<std::string>& lines, size_t i) {
      return i < lines.size() && !lines[i].empty() ? "'" + lines[i] + "'" : std::string("nothing");
    };
    for (size_t i = 0; i < std::max(expected.size(), found.size()); ++i) {
      if (line(expected, i) == line(found, i)) continue;
      complaints.push_back(
          concat("rank ", rank, " has ", line(found, i), " where the others have ", line(expected, i), " (number ", i, ")"));
      break;
    }
  }
  fail(ErrorCode::kFailed, "ranks disagree in ", what, ": ", join(complaints, "; "), "; ", advice);
}

void check_same_model(Group& group, const std::vector<NamedTensor>& parameters) {
  check_same_text(group, signature(parameters), "the model's parameters", "all ranks must build the same model in the same order");
}

void check_forward_writes(const torch::nn::Module& module, int num_ranks) {
  if (num_ranks == 1) return;
  const auto check = [](const torch::nn::Module& layer, const std::string& name) {
    const auto* const embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(&layer);
    const auto* const bag = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&layer);
    if ((embedding && embedding->options.max_norm()) || (bag && bag->options.max_norm()))
      fail(ErrorCode::kBadInput, "layer ", name,
           " is an embedding with max_norm, which changes its weights in forward, the rows that this rank looks up, so that ranks would "
           "have "
           "other weights; leave max_norm out, and where rows must stay small, look up in a renormalised copy: "
           "torch::embedding(torch::renorm(weight, 2, 0, max_norm), ids)");
  };
  check(module, module.name());
  for (const auto& item : module.named_modules("", /*include_self=*/false)) check(*item.value(), item.key());
}

void fail_left_step(int64_t num_left, int64_t rank, int num_ranks) {
  fail(ErrorCode::kFailed, num_left == 1 ? concat("rank ", rank) : concat(num_left, " of ", num_ranks, " ranks"),
       " left this step (an exception ended its forward or backward, and its own message says which), so no rank has the step's gradients; "
       "call zero_grad() and go on with the next step, or end the run");
}

void broadcast_model(const torch::nn::Module& module, Group& group) {
  if (group.size() == 1) return;
  at::NoGradGuard no_grad;
  std::map<at::ScalarType, std::vector<at::Tensor>> by_type;
  for (const NamedTensor& parameter : distinct_parameters(module)) by_type[parameter.tensor.scalar_type()].push_back(parameter.tensor);
  for (const NamedTensor& buffer : distinct_buffers(module)) by_type[buffer.tensor.scalar_type()].push_back(buffer.tensor);
  for (auto& [type, tensors] : by_type) {
    std::vector<at::Tensor> flattened;
    for (const at::Tensor& tensor : tensors) flattened.push_back(tensor.detach().reshape({-1}));
    at::Tensor flat = group.exchangeable(at::cat(flattened));
    group.broadcast(flat, 0, "the initial parameters");
    int64_t offset = 0;
    for (at::Tensor& tensor : tensors) {
      tensor.detach().copy_(flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
      offset += tensor.numel();
    }
  }
}

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
    // Strides by the golden ratio cover all positions.
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
