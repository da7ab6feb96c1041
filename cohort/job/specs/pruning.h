#pragma once
// How much of a model is pruned, and when. Torch-free.

#include <cstdint>
#include <optional>
#include <string>

namespace cohort {

/// What becomes zero of each pruned matrix.
struct Pruning {
  enum class Granularity {
    kWeight,     ///< The smallest magnitudes, wherever they are.
    kTwoOfFour,  ///< The two smallest of every four consecutive columns of a row.
  };
  Granularity granularity = Granularity::kWeight;
  double sparsity = 0;      ///< Part of the weights that is zero at the end, above 0 and below 1; 0.5 for two of four.
  bool is_uniform = false;  ///< That part of each tensor, as 2:4 has it by its nature, and not of all together.
};

/// "weight:0.9", "weight:0.9:uniform" or "2:4"; "" and "none": nothing. Error(kBadInput), which names --prune, for anything else.
std::optional<Pruning> parse_pruning(const std::string& text);

/// The gradual schedule of Zhu and Gupta 2017 (arXiv 1710.01878), equation 1: s(t) = s_f (1 - (1 - (t - begin) / (end - begin))^3).
/// It begins after a tenth of the steps (with trained weights at once), ends at `until` of them, and prunes 50 times in between, or at
/// every step where there are fewer; after its end as often, to the same sparsity, which changes nothing unless fp16 skipped one. A value.
class PruningSchedule {
 public:
  PruningSchedule(const Pruning& pruning, double until, bool has_trained_weights, int64_t total_steps);

  /// Part of the weights that is to be zero after step `number` (from 0), where it prunes.
  std::optional<double> at(int64_t number) const;
  /// Whether weights that are zero stay zero in it.
  bool has_begun(int64_t number) const { return number >= begin_; }

  int64_t begin() const { return begin_; }        ///< The first step that prunes, from 0,
  int64_t end() const { return end_; }            ///< the one that reaches the sparsity,
  int64_t interval() const { return interval_; }  ///< and the steps from one to the next.

 private:
  double sparsity_;
  int64_t begin_ = 0, end_ = 0, interval_ = 1;
};

}  // namespace cohort
