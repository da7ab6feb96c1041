#pragma once
// What each way of waiting, or not waiting, for other workers comes to: trainings under the virtual clock (docs/guide/virtual_time.md), so
// gradients are real, and all numbers are the same on every machine.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/record/advice_records.h"

namespace cohort {

/// One cell of the table: a mode under a condition.
struct SyncCell {
  std::string workload, condition;
  std::string sync, compress, remedy;  ///< As --layout and --remedy have them; "": none.
  std::string mode() const;            ///< "async/int8+rate:0.5".
  int num_workers = 1;
  int64_t seed = 1;
  double samples_per_second = 0;                    ///< Of the virtual clock,
  double seconds_to_goal = 0, samples_to_goal = 0;  ///< infinite: not reached.
  double val_loss = 0, val_error = 0;               ///< At the end, after as many samples as every mode.
  double staleness_median = 0, staleness_tail = 0;  ///< In pushes: half and 99 % of them are at most so late.
  std::vector<SyncAdviceRecord::Row> advised;       ///< Of the advice that the run ended with, sync and time_high alone; step first.
};

/// fc, cnn, transformer.
const std::vector<std::string>& sync_workloads();
/// even, slow (the last worker 4 times slower), pauses (at random), link (1 ms, 100 Mbit/s).
const std::vector<std::string>& sync_conditions();

/// Error(kBadInput) for a name that is none of these.
void check_sync_workload(const std::string& name);
void check_sync_condition(const std::string& name);

/// A whole training, in a process of this program's own. `mode`: SYNC, SYNC/COMPRESS, either with +REMEDY behind. `steps`: 0: the
/// workload's. The Error that it ends with.
SyncCell measure_sync(const std::string& workload, const std::string& condition, const std::string& mode, int num_workers, int64_t steps,
                      int64_t seed);

/// What is said of asynchronous training, held against the cells.
struct SyncSentence {
  std::string sentence;
  int64_t holds = 0, of = 0;  ///< Comparisons of two cells.
};
std::vector<SyncSentence> sync_sentences(const std::vector<SyncCell>& cells);

}  // namespace cohort
