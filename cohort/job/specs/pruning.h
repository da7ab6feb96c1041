#pragma once
// `--prune`: sparsity and schedule of pruning during training. Torch-free.

#include <cstdint>
#include <optional>
#include <string>

namespace cohort {

/// Which weights of a matrix become zero.
struct Pruning {
  enum class Granularity {
    kWeight,     ///< The smallest magnitudes.
    kTwoOfFour,  ///< The two smallest of every four consecutive columns of a row.
  };
  Granularity granularity = Granularity::kWeight;
  double sparsity = 0;      ///< Final fraction of zeros, in (0, 1); 0.5 for 2:4.
  bool is_uniform = false;  ///< The sparsity holds for each tensor, not for all together; always for 2:4.
};

/// "weight:0.9", "weight:0.9:uniform" or "2:4"; "" and "none": nullopt. Error(kBadInput) otherwise.
std::optional<Pruning> parse_pruning(const std::string& text);

/// The gradual schedule of Zhu and Gupta 2017 (arXiv 1710.01878), equation 1: s(t) = s_f (1 - (1 - (t - begin) / (end - begin))^3).
/// It begins after a tenth of the steps (with trained weights at once), ends at the fraction `until`, and prunes 50 times in between, or in
/// every step if there are fewer; afterwards as often, to the same sparsity, which only matters if fp16 skipped a step.
class PruningSchedule {
 public:
  PruningSchedule(const Pruning& pruning, double until, bool has_trained_weights, int64_t total_steps);

  /// Sparsity after step `number` (from 0), if that step prunes.
  std::optional<double> at(int64_t number) const;
  /// Whether zero weights stay zero in that step.
  bool has_begun(int64_t number) const { return number >= begin_; }

  int64_t begin() const { return begin_; }        ///< First step that prunes (from 0),
  int64_t end() const { return end_; }            ///< step that reaches the final sparsity,
  int64_t interval() const { return interval_; }  ///< and steps between prunings.

 private:
  double sparsity_;
  int64_t begin_ = 0, end_ = 0, interval_ = 1;
};

}  // namespace cohort
