#pragma once
// Which batch size to train with: the one that a study recommends, and the largest that fits into memory.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cohort/data/source/source.h"
#include "cohort/job/config.h"
#include "cohort/job/layout.h"

namespace cohort {

struct AutoBatch {
  Config config;         ///< The given configuration with the chosen numbers.
  std::string sentence;  ///< Why: steps x step time, what other batch sizes would take, whose hyperparameters.
};

/// Reads study.toml, steps_curve.csv and, where global_batch is 0 (auto), step_times.csv of `config.study`. `was_given` tells whether a
/// setting was an option of the command; a value other than the default (in a file) counts as given too. Given model, data, optimizer,
/// context and validation samples must be those of the study; other given settings override it. Defaults are the study's --goal, the
/// trial's budget as --steps and its --seed, --eval-every a twentieth of the expected steps, and --threads 1, as step times are measured.
/// Error(kBadInput) where a file or the number of workers is missing (it names the command to run) and for contradictions.
///
/// auto does not choose a batch size past the flat point of the curve (study/goal_curve.h). Without steps_curve.csv the study's store at
/// its first goal is used. `accumulate` is kept where the layout gives it or is not data-parallel.
AutoBatch resolve_auto_batch(const Config& config, const std::function<bool(const std::string& setting)>& was_given, const Layout& layout);

/// The workload of a plan for the time to the goal of `config.study`: `config` with model, data, optimizer, context and validation samples
/// of the study, and one thread. Errors are those of resolve_auto_batch().
Config workload_of_study(const Config& config, const std::function<bool(const std::string& setting)>& was_given);

// The largest micro-batch that fits into memory, and the smallest that keeps a worker busy (`cohort plan --find-batch`).

struct TriedBatch {
  int64_t micro_batch = 0;
  bool fits = false;
  double step_seconds = 0;         ///< Median of the steps of one process.
  int64_t peak_tensor_bytes = 0;   ///< As counted by --memory-limit.
  int64_t peak_process_bytes = 0;  ///< As counted by the kernel, with libraries and data.
  std::string why;                 ///< The reason where it does not fit.
};

struct FoundBatch {
  std::vector<TriedBatch> tried;                                          ///< Sorted by size.
  int64_t largest = 0;                                                    ///< The largest tried size that fits.
  enum class End { kMemory, kData, kTime, kStopped } end = End::kMemory;  ///< Why no larger size was tried.
  int64_t saturating = 0;                                                 ///< The smallest with kSaturated of the highest throughput.
  int64_t limit_bytes = 0;
  bool limit_is_given = false;  ///< Given by config.memory_limit; otherwise the free memory.
};

constexpr double kSaturated = 0.95;

/// Trains some steps at 1, 2, 4, ... samples in one process each, then halves the interval between what fits and what does not. Each try is
/// a child process that the kernel ends before any other where memory runs out. `show` is called for each; `stop` ends the search with the
/// results so far. The calling process must have one thread. Error(kInfeasible) where not even one sample fits, and what train() throws.
FoundBatch find_batch(const Config& config, const DataSet& data, const std::function<void(const TriedBatch&)>& show,
                      const std::function<bool()>& stop);

}  // namespace cohort
