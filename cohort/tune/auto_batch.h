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
  std::string sentence;  ///< Why: steps x step time, what other batch sizes would take, whose metaparameters.
};

/// Reads study.toml, steps_curve.csv and, where global_batch is 0 (auto), step_times.csv of `config.study`. `was_given` says whether a
/// setting was an option of the command; a value that differs from the default (in a file) counts as given too. Given model, data,
/// optimizer, context and validation samples must be the study's; other given settings (learning rate, goal, steps, threads, ...) win over
/// it. Left to it: --goal is the study's, --steps the trial's budget, --eval-every a twentieth of the expected steps, --threads what step
/// times were measured with, 1, --seed the trial's. No weights, no ranks. Error(kBadInput) that says what to run where a file or the number
/// of workers is missing, and what contradicts what.
///
/// A batch size past the curve's flat point (study/goal_curve.h) is not chosen by auto. Where there is no steps_curve.csv yet, the
/// study's store at its first goal counts. `accumulate` stays where the layout says it, or is no data parallelism.
AutoBatch resolve_auto_batch(const Config& config, const std::function<bool(const std::string& setting)>& was_given, const Layout& layout);

/// What a plan for the time to the goal of `config.study` measures: `config` with model, data, optimizer, context and validation samples of
/// the study, and one thread. Errors as above.
Config workload_of_study(const Config& config, const std::function<bool(const std::string& setting)>& was_given);

// The largest micro-batch that fits into memory, and the smallest that keeps a worker busy (`cohort plan --find-batch`).

struct TriedBatch {
  int64_t micro_batch = 0;
  bool fits = false;
  double step_seconds = 0;         ///< Median of the steps of one process.
  int64_t peak_tensor_bytes = 0;   ///< As counted by --memory-limit.
  int64_t peak_process_bytes = 0;  ///< As counted by the kernel, with libraries and data.
  std::string why;                 ///< Where it does not fit.
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
