#include "cohort/parallel/watch/weight_watch.h"

#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return storage_of(a) == storage_of(b) && a.storage_offset() == b.storage_offset() && a.is_contiguous();
}

std::string kind_of(const at::Tensor& tensor) { return concat(tensor.scalar_type(), " ", tensor.sizes(), " on ", tensor.device().str()); }

bool same_kind(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.device() == b.device() && a.sizes() == b.sizes();
}

}  // namespace

void WeightWatch::add(const NamedTensor& parameter, bool is_placed) {
  held_.push_back({parameter.name, parameter.tensor, parameter.tensor.variable_data(), is_placed, version_of(parameter.tensor),
                   storage_of(parameter.tensor)});
}

bool WeightWatch::is_replaced(size_t index) const {
  const Held& held = held_[index];
  return held.is_placed && !same_memory(held.parameter, held.place);
}

bool WeightWatch::any_replaced() const {
  for (size_t i = 0; i < held_.size(); ++i)
    if (is_replaced(i)) return true;
  return false;
}

bool WeightWatch::is_written(size_t index) const {
  const Held& held = held_[index];
  return version_of(held.parameter) != held.version || (!held.is_placed && storage_of(held.parameter) != held.storage);
}

int64_t WeightWatch::first_written() const {
  for (size_t i = 0; i < held_.size(); ++i)
    if (is_written(i) && !is_replaced(i)) return static_cast<int64_t>(i);
  return -1;
}

void WeightWatch::remember() {
  for (Held& held : held_) {
    held.version = version_of(held.parameter);
    held.storage = storage_of(held.parameter);
  }
}

void WeightWatch::check() const {
  std::vector<const Held*> replaced;
  for (size_t i = 0; i < held_.size(); ++i) {
    const Held& held = held_[i];
    if (!same_kind(held.parameter, held.place))
      fail(ErrorCode::kBadInput, "parameter ", held.name, " is ", kind_of(held.parameter), " now and was ", kind_of(held.place), " when ",
           owner_, " took the model; convert a model (module->to(), set_data()) before it is wrapped");
    if (is_replaced(i) && held.parameter.numel() > 0) replaced.push_back(&held);
  }
  for (const Held* one : replaced)
    for (const Held& other : held_)
      if (&other != one && (storage_of(one->parameter) == storage_of(other.place) || same_memory(one->parameter, other.parameter)))
        fail(ErrorCode::kBadInput, "parameters ", other.name, " and ", one->name, " share memory since ", owner_,
             " took the model; tie weights before it is wrapped, by registering one tensor under both names");
}

at::Tensor WeightWatch::restore(size_t index) {
  const at::NoGradGuard no_grad;
  Held& held = held_[index];
  at::Tensor values = held.parameter.variable_data();
  if (storage_of(values) == storage_of(held.place)) values = values.clone();  // For instance a transpose.
  held.parameter.set_data(held.place);
  held.version = version_of(held.parameter);  // torch::load() counts as an in-place write too.
  return values;
}

void WeightWatch::take_over() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < held_.size(); ++i)
    if (is_replaced(i)) place(i).copy_(restore(i));
}

int64_t checksum(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().cpu().contiguous();
  const auto* const data = static_cast<const char*>(values.const_data_ptr());
  const size_t num_bytes = values.nbytes();
  // FNV-1a over words, in four independent lanes.
  constexpr uint64_t kPrime = 0x100000001b3;
  std::array<uint64_t, 4> lanes{0xcbf29ce484222325, 1, 2, 3};
  const auto take = [&](size_t begin, size_t count) {
    std::array<uint64_t, 4> words{};
    std::memcpy(words.data(), data + begin, count);
    for (size_t lane = 0; lane < lanes.size(); ++lane) {
      lanes[lane] = (lanes[lane] ^ words[lane]) * kPrime;
      lanes[lane] ^= lanes[lane] >> 29;  // Products never move high bits down.
    }
  };
  size_t at = 0;
  for (; at + sizeof(lanes) <= num_bytes; at += sizeof(lanes)) take(at, sizeof(lanes));
  if (at < num_bytes) take(at, num_bytes - at);
  uint64_t sum = num_bytes;
  for (const uint64_t lane : lanes) sum = (sum ^ lane) * kPrime;
  return static_cast<int64_t>(sum | 1);
}

namespace {

/// Access to a module's own parameters, without the copy of the whole tree that named_parameters() makes.
struct Opened : torch::nn::Module {
  static const torch::OrderedDict<std::string, at::Tensor>& parameters_of(const torch::nn::Module& module) {
    return module.*(&Opened::parameters_);
  }
};

uint64_t form_of(const at::Tensor& tensor) {
  const auto type = static_cast<uint64_t>(tensor.scalar_type()), device = static_cast<uint64_t>(tensor.device().type());
  const auto index = static_cast<uint64_t>(static_cast<uint8_t>(tensor.device().index()));
  uint64_t shape = 1;
  for (const int64_t size : tensor.sizes()) shape = shape * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(size);
  return shape << 24 ^ index << 17 ^ device << 9 ^ type << 1 ^ (tensor.requires_grad() ? 1U : 0U);
}

/// Calls `see` with the two words of each parameter until it returns false.
template <typename See>
bool walk(const torch::nn::Module& module, const See& see) {
  for (const auto& item : Opened::parameters_of(module).items())
    if (item.value().defined() && !see(reinterpret_cast<uint64_t>(item.value().unsafeGetTensorImpl()), form_of(item.value()))) return false;
  for (const auto& child : module.children())
    if (child && !walk(*child, see)) return false;
  return true;
}

template <typename See>
bool walk_buffers(const torch::nn::Module& module, const See& see) {
  for (const at::Tensor& buffer : module.buffers(/*recurse=*/false))
    if (buffer.defined() && !see(buffer)) return false;
  for (const auto& child : module.children())
    if (child && !walk_buffers(*child, see)) return false;
  return true;
}

const void* address_of(const NamedTensor& one) { return one.tensor.unsafeGetTensorImpl(); }

std::vector<std::string> lines_of(const std::vector<NamedTensor>& parameters) {
  std::vector<std::string> lines = split(signature(parameters), '\n');
  std::erase(lines, "");
  return lines;
}

}  // namespace

ModuleWatch::ModuleWatch(const torch::nn::Module& module) : module_(module) { remember(); }

bool ModuleWatch::changed() const {
  size_t at = 0;
  const bool same = walk(module_, [&](uint64_t address, uint64_t kind) {
    if (at + 2 > seen_.size() || seen_[at] != address || seen_[at + 1] != kind) return false;
    at += 2;
    return true;
  });
  return !same || at != seen_.size();
}

void ModuleWatch::remember() {
  seen_.clear();
  walk(module_, [&](uint64_t address, uint64_t kind) {
    seen_.insert(seen_.end(), {address, kind});
    return true;
  });
  parameters_ = distinct_parameters(module_);
  trained_.clear();
  for (const NamedTensor& one : parameters_)
    if (one.tensor.requires_grad()) trained_.push_back(address_of(one));
  std::sort(trained_.begin(), trained_.end());
  lines_ = lines_of(parameters_);
  remember_buffers();
}

bool ModuleWatch::buffers_changed() const {
  size_t at = 0;
  const bool same = walk_buffers(module_, [&](const at::Tensor& buffer) {
    if (at == buffers_.size()) return false;
    const at::Tensor& before = buffers_[at];
    ++at;
    return buffer.is_same(before);
  });
  return !same || at != buffers_.size();
}

void ModuleWatch::remember_buffers() {
  buffers_.clear();
  walk_buffers(module_, [&](const at::Tensor& buffer) {
    buffers_.push_back(buffer);
    return true;
  });
}

void ModuleWatch::check_trained(const std::string& owner) const {
  if (!changed()) return;
  for (const NamedTensor& one : distinct_parameters(module_))
    if (one.tensor.requires_grad() && !std::binary_search(trained_.begin(), trained_.end(), address_of(one)))
      fail(ErrorCode::kBadInput, "parameter ", one.name, " was registered, replaced or unfrozen after ", owner,
           " (of Parallel, if you made that) took the model, which cannot divide it now: without an exchange it would drift apart between "
           "ranks; "
           "make the change first and the Parallel anew, or use dp with step(optimizer) (DataParallel), which follows such changes");
}

std::string ModuleWatch::difference() const {
  const std::vector<NamedTensor> parameters = distinct_parameters(module_);
  const std::vector<std::string> now = lines_of(parameters);
  const auto lacking = [](const std::vector<std::string>& some, const std::vector<std::string>& all) {
    const auto found = std::find_if(some.begin(), some.end(),
                                    [&](const std::string& line) { return std::find(all.begin(), all.end(), line) == all.end(); });
    return found == some.end() ? std::string() : *found;
  };
  std::vector<std::string> parts;
  if (const std::string came = lacking(now, lines_); !came.empty()) parts.push_back("parameter " + came + " came");
  if (const std::string went = lacking(lines_, now); !went.empty()) parts.push_back("parameter " + went + " went");
  if (!parts.empty() || !changed()) return join(parts, ", ");
  for (size_t i = 0; i < std::min(parameters.size(), parameters_.size()); ++i)
    if (!parameters[i].tensor.is_same(parameters_[i].tensor)) return concat("parameter ", parameters[i].name, " is another tensor");
  return "a parameter is registered elsewhere";
}

}  // namespace cohort
