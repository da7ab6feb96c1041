#include "cohort/parallel/watch/module_watch.h"

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

/// The parameters of one module, without the copy that named_parameters() makes of the whole tree.
struct Opened : torch::nn::Module {
  static const torch::OrderedDict<std::string, at::Tensor>& parameters_of(const torch::nn::Module& module) {
    return module.*(&Opened::parameters_);
  }
};

uint64_t kind_of(const at::Tensor& tensor) {
  const auto type = static_cast<uint64_t>(tensor.scalar_type()), device = static_cast<uint64_t>(tensor.device().type());
  const auto index = static_cast<uint64_t>(static_cast<uint8_t>(tensor.device().index()));
  uint64_t shape = 1;
  for (const int64_t size : tensor.sizes()) shape = shape * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(size);
  return shape << 24 ^ index << 17 ^ device << 9 ^ type << 1 ^ (tensor.requires_grad() ? 1U : 0U);
}

/// Calls `see` with the two words of each parameter until it says false.
template <typename See>
bool walk(const torch::nn::Module& module, const See& see) {
  for (const auto& item : Opened::parameters_of(module).items())
    if (item.value().defined() && !see(reinterpret_cast<uint64_t>(item.value().unsafeGetTensorImpl()), kind_of(item.value()))) return false;
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
