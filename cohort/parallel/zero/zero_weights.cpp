#include "cohort/parallel/zero/zero_weights.h"

#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <map>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/parallel/common/staged_exchange.h"
#include "cohort/parallel/common/tensor_alias.h"

namespace cohort {

void check_divisible(const std::vector<NamedTensor>& parameters) {
  std::map<const char*, std::pair<const char*, const std::string*>> ranges;  // Begin -> end and name.
  for (const NamedTensor& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor;
    if (tensor.layout() != at::kStrided || !tensor.is_contiguous() || tensor.is_meta())
      fail(ErrorCode::kBadInput, "parameter ", parameter.name,
           " cannot be divided over ranks: it must be a dense, contiguous tensor in this host's memory or a device's");
    if (const NamedTensor& first = parameters.front(); tensor.device() != first.tensor.device())
      fail(ErrorCode::kBadInput, "parameter ", parameter.name, " is on ", tensor.device().str(), " and ", first.name, " on ",
           first.tensor.device().str(),
           ": ZeRO divides models whose parameters are all on one device; move the model there, or use zero=0 (DataParallel)");
    if (tensor.numel() == 0) continue;
    const char* const begin = static_cast<const char*>(tensor.const_data_ptr());
    const char* const end = begin + tensor.nbytes();
    const auto after = ranges.lower_bound(begin);
    const std::string* other = nullptr;
    if (after != ranges.end() && after->first < end) other = after->second.second;
    if (after != ranges.begin() && std::prev(after)->second.first > begin) other = std::prev(after)->second.second;
    if (other)
      fail(ErrorCode::kBadInput, "parameters ", *other, " and ", parameter.name,
           " share memory but are two tensors; to tie weights register one tensor under both names");
    ranges[begin] = {end, &parameter.name};
  }
}

ZeroWeights::ZeroWeights(Group group, const std::vector<NamedTensor>& parameters, std::vector<ZeroUnit> units, UnitMemory& memory,
                         ZeroWeightsOptions options)
    : group_(std::move(group)), units_(std::move(units)), wholes_(units_.size()), slices_(units_.size()) {
  at::NoGradGuard no_grad;
  for (size_t index = 0; index < units_.size(); ++index) {
    names_.push_back(unit_name(units_[index], parameters, index));
    move_in(index, parameters, memory, options);
  }
}

/// Copies the parameters of a unit into it (rank 0's, where they are broadcast) and makes them aliases of it.
void ZeroWeights::move_in(size_t index, const std::vector<NamedTensor>& parameters, UnitMemory& memory, const ZeroWeightsOptions& options) {
  const ZeroUnit& unit = units_[index];
  at::Tensor& whole = wholes_[index];
  if (options.keep_slices_only) {
    whole = without_memory(unit.num_elements, unit.options());
    memory.attach(whole);
    whole.zero_();
  } else {
    whole = exchanged_zeros(group_, unit.num_elements, unit.options());
  }
  std::vector<at::Tensor> places;
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    const at::Tensor& tensor = parameters[static_cast<size_t>(unit.parameters[i])].tensor;
    places.push_back(alias_of(whole, unit.offsets[i], tensor.sizes()));
    places.back().copy_(tensor.detach());
  }
  if (options.broadcast_model && group_.size() > 1) broadcast(group_, whole, 0, names_[index]);
  for (size_t i = 0; i < places.size(); ++i) {
    at::Tensor tensor = parameters[static_cast<size_t>(unit.parameters[i])].tensor;
    tensor.set_data(places[i]);
  }
  at::Tensor& slice = slices_[index];
  slice = alias_of(whole, group_.rank() * unit.slice_elements, {unit.slice_elements});
  if (!options.keep_slices_only) return;
  const at::Tensor kept = exchanged_zeros(group_, unit.slice_elements, unit.options());
  kept.copy_(slice);
  slice = kept;
  memory.detach(whole);
}

std::unique_ptr<Pending> ZeroWeights::start_gather(size_t index) {
  if (group_.size() == 1) return nullptr;
  return start_all_gather(group_, wholes_[index], slices_[index], names_[index]);
}

}  // namespace cohort
