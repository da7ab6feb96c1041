// The k-th smallest magnitude of tensors whose elements lie on several ranks, exactly: a radix select.
//
// The bits of positive floating-point numbers, read as integers, are in the numbers' order. So the k-th smallest magnitude is found byte by
// byte, from the highest:
//   1. each rank counts by this byte those elements whose higher bytes are the ones found so far: 256 numbers per tensor
//   2. the counts are summed over the ranks, for all tensors in one message
//   3. the byte is the one where the cumulative count passes k; k is reduced by the counts before it
// 4 rounds for floats, 8 for doubles. The remaining k says how many of the elements equal to the result are selected: the first ones, for
// which ranks exchange how many they have where that is not all of them.
//
// Two of four: an element qualifies that is among the two smallest of its group of four. Groups divided between ranks are completed first:
// each rank shares its first and last three elements of every tensor.
//
// Cost: 4 (8) reads of the weights, 4 (8) all-reduces of 2 KiB per tensor; memory of a byte per element.
//
// Source: radix select as in Alabi et al. 2012, "Fast k-selection algorithms for graphics processing units" (JEA 17); over ranks the counts
// are the histogram that a distributed sort by radix exchanges.
#include "cohort/parallel/prune/smallest_weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <optional>
#include <type_traits>

namespace cohort {
namespace {

constexpr int64_t kNumBins = 256, kOfFour = 4, kEnds = kOfFour - 1;

template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

/// This rank's elements of one tensor, with up to three neighbours on either side.
template <typename T>
class Magnitudes {
 public:
  using Bits = BitsOf<T>;
  /// No magnitude has a sign bit of 1.
  static constexpr Bits kNone = ~Bits{0};

  Magnitudes(const DividedTensor& tensor, bool two_of_four)
      : values_(tensor.own.const_data_ptr<T>()), begin_(tensor.begin), count_(tensor.own.numel()), two_of_four_(two_of_four) {}

  int64_t begin() const { return begin_; }
  int64_t count() const { return count_; }
  /// Sets element `index` of the whole tensor, which another rank owns.
  void set_neighbour(int64_t index, double value) {
    const int64_t at = index - begin_;
    if (at < 0 && at >= -kEnds) before_[static_cast<size_t>(-at - 1)] = static_cast<T>(value);
    if (at >= count_ && at < count_ + kEnds) after_[static_cast<size_t>(at - count_)] = static_cast<T>(value);
  }
  /// The i-th element's magnitude; kNone where it does not qualify.
  Bits operator[](int64_t i) const {
    const Bits own = bits(i);
    if (!two_of_four_) return own;
    const int64_t first = i - (begin_ + i) % kOfFour;
    int smaller = 0;
    for (int64_t j = first; j < first + kOfFour; ++j) smaller += j < i ? bits(j) <= own : j > i && bits(j) < own;
    return smaller < 2 ? own : kNone;
  }

 private:
  Bits bits(int64_t i) const {
    const T value = i < 0 ? before_[static_cast<size_t>(-i - 1)] : i >= count_ ? after_[static_cast<size_t>(i - count_)] : values_[i];
    return std::bit_cast<Bits>(std::fabs(value));
  }

  const T* values_;
  int64_t begin_, count_;
  bool two_of_four_;
  std::array<T, kEnds> before_{}, after_{};
};

/// Every rank's `mine`, {ranks, ...}.
at::Tensor of_all_ranks(Group& group, const at::Tensor& mine, const char* what) {
  std::vector<int64_t> shape = {group.size()};
  for (const int64_t size : mine.sizes()) shape.push_back(size);
  at::Tensor all = at::empty(shape, mine.options());
  group.all_gather(all, mine, what);
  return all;
}

/// Radix select for tensors of one type.
template <typename T>
class Select {
 public:
  using Bits = BitsOf<T>;

  Select(const std::vector<DividedTensor>& tensors, Pruning::Granularity granularity, Group* group)
      : tensors_(tensors), group_(group), two_of_four_(granularity == Pruning::Granularity::kTwoOfFour) {
    for (const DividedTensor& tensor : tensors) magnitudes_.push_back(tensor.own.defined() ? made(tensor) : std::nullopt);
    if (group_ && two_of_four_) meet_neighbours();
  }

  std::vector<at::Tensor> keep() {
    states_.clear();
    for (const DividedTensor& tensor : tensors_) {
      const int64_t most = two_of_four_ ? tensor.num_elements / 2 : tensor.num_elements;
      states_.push_back({.left = std::min<int64_t>(most, std::llround(tensor.sparsity * static_cast<double>(tensor.num_elements)))});
    }
    for (int shift = 8 * static_cast<int>(sizeof(Bits)) - 8; shift >= 0; shift -= 8) round(shift);
    share_ties();
    std::vector<at::Tensor> out;
    for (size_t i = 0; i < tensors_.size(); ++i) out.push_back(magnitudes_[i] ? bytes_of(*magnitudes_[i], states_[i]) : at::Tensor());
    return out;
  }

 private:
  struct State {
    int64_t left = 0;       ///< Elements still to be selected among those with the prefix.
    Bits prefix = 0;        ///< Leading bytes of the magnitude found so far.
    int64_t num_equal = 0;  ///< Elements of the whole tensor with the prefix.
    bool is_empty = false;  ///< Nothing is selected.
  };

  std::optional<Magnitudes<T>> made(const DividedTensor& tensor) const {
    return tensor.own.numel() > 0 ? std::optional<Magnitudes<T>>(std::in_place, tensor, two_of_four_) : std::nullopt;
  }

  /// Exchanges the ends of every rank's ranges, for groups of four that are divided between ranks.
  void meet_neighbours() {
    constexpr int64_t kFields = 2 + 2 * kEnds;
    const auto num = static_cast<int64_t>(tensors_.size());
    const at::Tensor mine = at::zeros({num, kFields}, at::kDouble);
    for (int64_t i = 0; i < num; ++i) {
      const DividedTensor& tensor = tensors_[static_cast<size_t>(i)];
      if (!magnitudes_[static_cast<size_t>(i)]) continue;
      double* const row = mine.data_ptr<double>() + i * kFields;
      const int64_t count = tensor.own.numel();
      row[0] = static_cast<double>(tensor.begin), row[1] = static_cast<double>(count);
      const T* const values = tensor.own.const_data_ptr<T>();
      for (int64_t j = 0; j < std::min(count, kEnds); ++j) {
        row[2 + j] = static_cast<double>(values[j]);
        row[2 + kEnds + j] = static_cast<double>(values[count - 1 - j]);
      }
    }
    const at::Tensor all = of_all_ranks(*group_, mine, "the ends of what ranks have of pruned weights");
    for (int64_t rank = 0; rank < group_->size(); ++rank) {
      if (rank == group_->rank()) continue;
      for (int64_t i = 0; i < num; ++i) {
        auto& here = magnitudes_[static_cast<size_t>(i)];
        const double* const row = all.const_data_ptr<double>() + (rank * num + i) * kFields;
        if (!here) continue;
        const auto begin = static_cast<int64_t>(row[0]), count = static_cast<int64_t>(row[1]);
        for (int64_t j = 0; j < std::min(count, kEnds); ++j) {
          here->set_neighbour(begin + j, row[2 + j]);
          here->set_neighbour(begin + count - 1 - j, row[2 + kEnds + j]);
        }
      }
    }
  }

  /// Finds the next byte of every tensor's magnitude.
  void round(int shift) {
    const auto num = static_cast<int64_t>(tensors_.size());
    const at::Tensor counts = at::zeros({num * kNumBins}, at::kLong);
    for (int64_t i = 0; i < num; ++i) {
      const auto& here = magnitudes_[static_cast<size_t>(i)];
      if (!here) continue;
      int64_t* const bins = counts.data_ptr<int64_t>() + i * kNumBins;
      const Bits prefix = states_[static_cast<size_t>(i)].prefix;
      const bool is_first = shift + 8 == static_cast<int>(8 * sizeof(Bits));
      for (int64_t j = 0; j < here->count(); ++j) {
        const Bits bits = (*here)[j];
        if (bits == Magnitudes<T>::kNone || (!is_first && bits >> (shift + 8) != prefix)) continue;
        ++bins[(bits >> shift) & 0xff];
      }
    }
    if (group_) group_->all_reduce(counts, Reduction::kSum, "counts of pruned weights");
    for (int64_t i = 0; i < num; ++i) {
      State& state = states_[static_cast<size_t>(i)];
      const int64_t* const bins = counts.const_data_ptr<int64_t>() + i * kNumBins;
      state.is_empty = state.is_empty || state.left <= 0;
      if (state.is_empty) continue;
      int64_t bin = 0;
      while (bin + 1 < kNumBins && state.left > bins[bin]) state.left -= bins[bin++];
      state.num_equal = bins[bin];
      state.prefix = (state.prefix << 8) | static_cast<Bits>(bin);
    }
  }

  /// Of the elements equal to the magnitude found, the first `left` of the whole tensor are selected: computes how many of them are here.
  void share_ties() {
    const auto is_divided = [](const State& state) { return !state.is_empty && state.left < state.num_equal; };
    if (!group_ || std::none_of(states_.begin(), states_.end(), is_divided)) return;
    const auto num = static_cast<int64_t>(tensors_.size());
    const at::Tensor mine = at::zeros({num, 2}, at::kLong);
    for (int64_t i = 0; i < num; ++i) {
      const auto& here = magnitudes_[static_cast<size_t>(i)];
      if (!here) continue;
      int64_t* const row = mine.data_ptr<int64_t>() + 2 * i;
      row[0] = here->begin();
      for (int64_t j = 0; j < here->count(); ++j) row[1] += (*here)[j] == states_[static_cast<size_t>(i)].prefix;
    }
    const at::Tensor all = of_all_ranks(*group_, mine, "how many pruned weights are equal");
    for (int64_t rank = 0; rank < group_->size(); ++rank)
      for (int64_t i = 0; i < num; ++i) {
        const auto& here = magnitudes_[static_cast<size_t>(i)];
        const int64_t* const row = all.const_data_ptr<int64_t>() + (rank * num + i) * 2;
        if (here && row[0] < here->begin()) states_[static_cast<size_t>(i)].left -= row[1];
      }
  }

  at::Tensor bytes_of(const Magnitudes<T>& here, const State& state) const {
    at::Tensor keep = at::empty({here.count()}, at::kByte);
    auto* const bytes = keep.data_ptr<uint8_t>();
    int64_t left = state.left;
    for (int64_t j = 0; j < here.count(); ++j) {
      const Bits bits = here[j];
      bool is_pruned = !state.is_empty && bits < state.prefix;
      if (!state.is_empty && bits == state.prefix) is_pruned = left-- > 0;
      bytes[j] = is_pruned ? 0 : 1;
    }
    return keep;
  }

  const std::vector<DividedTensor>& tensors_;
  Group* group_;
  bool two_of_four_;
  std::vector<std::optional<Magnitudes<T>>> magnitudes_;
  std::vector<State> states_;
};

}  // namespace

std::vector<at::Tensor> keep_all_but_smallest(const std::vector<DividedTensor>& tensors, Pruning::Granularity granularity, Group* group) {
  if (tensors.empty()) return {};
  if (group && group->size() == 1) group = nullptr;
  // A rank without elements takes part like the others; only a model of doubles has another number of rounds.
  bool any_double = false, any_float = false;
  for (const DividedTensor& tensor : tensors) {
    if (!tensor.own.defined()) continue;
    (tensor.own.scalar_type() == at::kDouble ? any_double : any_float) = true;
  }
  if (group) {
    at::Tensor any = at::zeros({2}, at::kLong);
    any.data_ptr<int64_t>()[0] = any_double, any.data_ptr<int64_t>()[1] = any_float;
    group->all_reduce(any, Reduction::kMax, "types of pruned weights");
    any_double = any.data_ptr<int64_t>()[0] != 0, any_float = any.data_ptr<int64_t>()[1] != 0;
  }
  if (any_double && any_float) {
    // Floats compare alike as doubles.
    std::vector<DividedTensor> doubles = tensors;
    for (DividedTensor& tensor : doubles)
      if (tensor.own.defined()) tensor.own = tensor.own.to(at::kDouble);
    return Select<double>(doubles, granularity, group).keep();
  }
  if (any_double) return Select<double>(tensors, granularity, group).keep();
  return Select<float>(tensors, granularity, group).keep();
}

}  // namespace cohort
