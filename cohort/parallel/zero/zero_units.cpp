#include "cohort/parallel/zero/zero_units.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <map>

#include "cohort/base/fail.h"
#include "cohort/parallel/common/flat_piece.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/parallel/common/staged_exchange.h"

namespace cohort {
namespace {

constexpr int64_t kLineBytes = 64;

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

std::string module_of(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? std::string() : parameter.substr(0, dot);
}

class Planner {
 public:
  Planner(const std::vector<NamedTensor>& parameters, int64_t unit_bytes, int num_ranks)
      : parameters_(parameters), unit_bytes_(unit_bytes), num_ranks_(num_ranks) {}

  /// Adds the parameters [begin, end) of one module.
  void add_module(int begin, int end) {
    std::map<Kind, std::vector<int>> by_kind;
    for (int i = begin; i < end; ++i) by_kind[kind_of(i)].push_back(i);
    for (const auto& [kind, members] : by_kind) {
      int64_t bytes = 0;
      for (const int member : members) bytes += place_bytes(member);
      const int together = bytes <= unit_bytes_ ? static_cast<int>(members.size()) : 1;
      for (size_t first = 0; first < members.size(); first += static_cast<size_t>(together)) {
        make_room(kind, together == 1 ? place_bytes(members[first]) : bytes);
        for (int i = 0; i < together; ++i) append(kind, members[first + static_cast<size_t>(i)]);
      }
    }
  }

  std::vector<ZeroUnit> finish() {
    while (!open_.empty()) close(open_.begin()->first);
    std::sort(units_.begin(), units_.end(), [](const ZeroUnit& a, const ZeroUnit& b) { return a.parameters[0] < b.parameters[0]; });
    return std::move(units_);
  }

 private:
  using Kind = std::pair<at::ScalarType, bool>;

  const at::Tensor& tensor(int parameter) const { return parameters_[static_cast<size_t>(parameter)].tensor; }
  Kind kind_of(int parameter) const { return {tensor(parameter).scalar_type(), tensor(parameter).requires_grad()}; }
  int64_t place_bytes(int parameter) const { return round_up(static_cast<int64_t>(tensor(parameter).nbytes()), kLineBytes); }

  void make_room(const Kind& kind, int64_t bytes) {
    const auto place = open_.find(kind);
    if (place != open_.end() && place->second.bytes() + bytes > unit_bytes_) close(kind);
  }

  void append(const Kind& kind, int parameter) {
    ZeroUnit& unit = open_[kind];
    std::tie(unit.type, unit.trained) = kind;
    unit.device = tensor(parameter).device();
    unit.parameters.push_back(parameter);
    unit.offsets.push_back(unit.num_elements);
    unit.num_elements += place_bytes(parameter) / static_cast<int64_t>(tensor(parameter).element_size());
  }

  void close(const Kind& kind) {
    ZeroUnit unit = std::move(open_[kind]);
    open_.erase(kind);
    const int64_t line = kLineBytes / static_cast<int64_t>(c10::elementSize(unit.type));
    unit.slice_elements = std::max(line, round_up((unit.num_elements + num_ranks_ - 1) / num_ranks_, line));
    unit.num_elements = unit.slice_elements * num_ranks_;
    units_.push_back(std::move(unit));
  }

  const std::vector<NamedTensor>& parameters_;
  const int64_t unit_bytes_;
  const int num_ranks_;
  std::map<Kind, ZeroUnit> open_;
  std::vector<ZeroUnit> units_;
};

}  // namespace

std::vector<ZeroUnit> plan_units(const std::vector<NamedTensor>& parameters, int64_t unit_bytes, int num_ranks) {
  Planner planner(parameters, unit_bytes, num_ranks);
  const int count = static_cast<int>(parameters.size());
  for (int begin = 0, end = 0; begin < count; begin = end) {
    const std::string module = module_of(parameters[static_cast<size_t>(begin)].name);
    for (end = begin + 1; end < count && module_of(parameters[static_cast<size_t>(end)].name) == module;) ++end;
    planner.add_module(begin, end);
  }
  return planner.finish();
}

std::vector<SlicePiece> slice_pieces(const ZeroUnit& unit, const std::vector<NamedTensor>& parameters, int rank) {
  const int64_t from = unit.slice_elements * rank, to = from + unit.slice_elements;
  std::vector<SlicePiece> pieces;
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    const int64_t first = unit.offsets[i], count = parameters[static_cast<size_t>(unit.parameters[i])].tensor.numel();
    const int64_t begin = std::max(from, first), end = std::min(to, first + count);
    if (end > begin) pieces.push_back({unit.parameters[i], begin - first, end - begin, begin - from});
    else if (count == 0 && rank == 0) pieces.push_back({unit.parameters[i], 0, 0, 0});
  }
  return pieces;
}

std::string unit_name(const ZeroUnit& unit, const std::vector<NamedTensor>& parameters, size_t index) {
  const auto name = [&](int parameter) { return parameters[static_cast<size_t>(parameter)].name; };
  return concat("unit ", index, " (", name(unit.parameters.front()),
                unit.parameters.size() > 1 ? " ... " + name(unit.parameters.back()) : "", ", ", unit.bytes(), " bytes)");
}

namespace {

/// From the device's allocator, like any tensor's memory.
c10::DataPtr allocate(size_t bytes, c10::Device device) {
  const at::Tensor tensor = at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte).device(device));
  return tensor.storage().unsafeGetStorageImpl()->set_data_ptr(c10::DataPtr(nullptr, device));
}

/// Makes LibTorch throw where an operator accesses the data.
void guard(c10::StorageImpl& storage) {
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
      "these elements are not in this process's memory now: they are a sharded parameter's (ZeRO stage 3), which is here only while an "
      "operator "
      "of the thread that built ZeroDataParallel uses it; for other uses call gather_weights() first");
}

}  // namespace

at::Tensor without_memory(int64_t num_elements, at::TensorOptions options) {
  at::Tensor tensor = at::empty({num_elements}, options.requires_grad(false));
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, tensor.device()));  // The nominal size stays.
  guard(storage);
  return tensor;
}

bool has_memory(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() != nullptr;
}

UnitMemory::Block UnitMemory::take(size_t bytes, c10::Device device) {
  // A block up to an eighth too large fits as well.
  auto best = idle_.end();
  for (auto block = idle_.begin(); block != idle_.end(); ++block)
    if (block->data.device() == device && block->bytes >= bytes && block->bytes <= bytes + bytes / 8 &&
        (best == idle_.end() || block->bytes < best->bytes))
      best = block;
  if (best != idle_.end()) {
    Block block = std::move(*best);
    idle_.erase(best);
    idle_bytes_ -= static_cast<int64_t>(block.bytes);
    return block;
  }
  while (!idle_.empty() && lent_bytes_ + idle_bytes_ + static_cast<int64_t>(bytes) > kept_bytes_) {
    idle_bytes_ -= static_cast<int64_t>(idle_.front().bytes);
    idle_.erase(idle_.begin());
  }
  return {bytes, allocate(bytes, device)};
}

void UnitMemory::attach(const at::Tensor& tensor) {
  if (has_memory(tensor)) fail(ErrorCode::kFailed, "a unit already has memory");
  Block block = take(tensor.storage().nbytes(), tensor.device());
  lent_bytes_ += static_cast<int64_t>(block.bytes);
  lent_.emplace_back(tensor.storage().unsafeGetStorageImpl(), block.bytes);
  peak_bytes_ = std::max(peak_bytes_, lent_bytes_ + idle_bytes_);
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  storage->clear_data_ptr_access_error_msg_();
  storage->set_data_ptr_noswap(std::move(block.data));
}

void UnitMemory::detach(const at::Tensor& tensor) {
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  const auto place = std::find_if(lent_.begin(), lent_.end(), [&](const auto& one) { return one.first == storage; });
  if (place == lent_.end()) fail(ErrorCode::kFailed, "a unit has no memory to give back");
  Block block{place->second, storage->set_data_ptr(c10::DataPtr(nullptr, tensor.device()))};
  guard(*storage);
  lent_.erase(place);
  lent_bytes_ -= static_cast<int64_t>(block.bytes);
  idle_bytes_ += static_cast<int64_t>(block.bytes);
  idle_.push_back(std::move(block));
}

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

/// Copies the parameters of a unit into it (rank 0's where broadcast) and makes them aliases of it.
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
