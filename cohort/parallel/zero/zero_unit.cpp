#include "cohort/parallel/zero/zero_unit.h"

#include <algorithm>
#include <map>
#include <utility>

#include "cohort/base/fail.h"

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

  /// The parameters [begin, end) are one module's.
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

}  // namespace cohort
