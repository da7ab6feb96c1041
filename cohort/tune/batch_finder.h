#pragma once
// The largest micro-batch that fits into memory, and the smallest that keeps a worker busy (`cohort plan --find-batch`).

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cohort/data/source/source.h"
#include "cohort/job/config.h"

namespace cohort {

struct TriedBatch {
  int64_t micro_batch = 0;
  bool fits = false;
  double step_seconds = 0;         ///< Median of the steps of one process.
  int64_t peak_tensor_bytes = 0;   ///< What --memory-limit counts.
  int64_t peak_process_bytes = 0;  ///< What the kernel counts: with libraries and data.
  std::string why;                 ///< Where it does not fit.
};

struct FoundBatch {
  std::vector<TriedBatch> tried;                                          ///< By size.
  int64_t largest = 0;                                                    ///< That fits, of those tried.
  enum class End { kMemory, kData, kTime, kStopped } end = End::kMemory;  ///< What kept larger ones from being tried.
  int64_t saturating = 0;                                                 ///< The smallest with kSaturated of the most samples a second.
  int64_t limit_bytes = 0;
  bool limit_is_given = false;  ///< By config.memory_limit, else by the memory that is free.
};

constexpr double kSaturated = 0.95;

/// Trains some steps at 1, 2, 4, ... samples in one process each, then halves the interval between what fits and what does not. Each try is
/// a child process that the kernel ends before any other where memory runs out. `show` hears of each; `stop` ends the search with what is
/// known. The calling process must have one thread. Error(kInfeasible) where not even one sample fits, and what train() throws.
FoundBatch find_batch(const Config& config, const DataSet& data, const std::function<void(const TriedBatch&)>& show,
                      const std::function<bool()>& stop);

}  // namespace cohort
