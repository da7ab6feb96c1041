#pragma once
// Seconds of a data-parallel training step on this machine for each batch size and number of workers, which turn steps to a goal into time.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/study/analysis/worth.h"
#include "cohort/study/spec/spec.h"

namespace cohort {

struct StepTimesOptions {
  /// Step times are measured for 1 to N ranks of one compute thread each (all numbers to 8, then 12, 16, 24, ... and this one); 0: as
  /// many as this process has cores. More than that is refused: ranks that share a core say nothing about a machine that has more.
  int max_workers = 0;
  double cell_seconds = 1.5;   ///< For one batch size with one number of workers, at least 12 steps.
  double total_seconds = 120;  ///< Cells get less where all of them would take longer; 12 slow steps may still exceed it.
  std::string backend = "auto";
  bool synthetic = false;  ///< Use the synthetic data of the spec instead of its data.
};

/// Every pair of `batch_sizes` and a number of workers that leaves each worker at least one sample; workers rise within batch sizes as
/// given. Forks its ranks, several times (numbers of workers take turns, so that a noisy machine is unfair to none): the calling process
/// must have one thread, so it must not have computed with LibTorch's thread pool before. Empty for a noisy quadratic, which has no step to
/// time. Error: kBadInput where data or model can not be opened, or for too many workers; kEnvironment with several threads; a rank's own
/// code (kInterrupted after Ctrl-C).
std::vector<study::StepTime> measure_step_times(const study::StudySpec& spec, const std::vector<int64_t>& batch_sizes,
                                                const StepTimesOptions& options = {});

}  // namespace cohort
