#pragma once
// Faults that somebody asks for: of the machine (--inject), to see what becomes of a run, and mistakes that `cohort verify --faults` puts
// into a training, to show that it finds them. Torch-free.

#include <cstdint>
#include <string>
#include <vector>

namespace cohort {

// `--inject`: faults of the machine that a user asks for, to see what becomes of a run.

/// One of `--inject`.
struct InjectedFault {
  std::string kind;  ///< slow, pause, kill.
  int64_t rank = 0;
  double value = 0;  ///< Factor, seconds, step.
};
/// Error(kBadInput) for what is no fault, or one that is given twice to a rank.
std::vector<InjectedFault> parse_faults(const std::string& text);

/// What they are for one rank.
struct Injection {
  double slow_factor = 1.0;
  double pause_seconds = 0.0;
  int64_t kill_step = -1;
};
Injection injection_for_rank(const std::vector<InjectedFault>& faults, int rank);
/// Those of ranks below `num_ranks`, of slow workers alone where `slow_only`, as text again; "" for none.
std::string selected_faults(const std::string& text, int num_ranks, bool slow_only);
/// The highest rank that has one, -1 for none.
int64_t last_injected_rank(const std::vector<InjectedFault>& faults);

// Faults that `cohort verify --faults` puts into a training on purpose, to show that it finds them. Each is a mistake that a change of the
// exchange, the schedule or the divided layers could make.

enum class Fault {
  kNone,
  kGradientScaled,        ///< The gradient of one replica (its last micro-batch's, where it is the only one) times 1.01.
  kBucketNotExchanged,    ///< The gradient of one parameter is that of the first replica alone.
  kShareDropped,          ///< One replica's last micro-batch counts for nothing.
  kDropoutOfAnotherStep,  ///< One replica draws the masks of the next step.
  kLearningRate,          ///< The learning rate is 1.01 times what it should be.
  kPartialSumMissing,     ///< One rank of a tensor-parallel group adds nothing to sums.
  kStaleBorrowedWeight,   ///< A stage goes on with the tied weight that it borrowed first.
  kBatchNormNotShared,    ///< Batch norm over all ranks uses each rank's own statistics.
};

struct FaultName {
  Fault fault;
  std::string name;  ///< As --faults takes it.
  std::string sentence;
};
/// All but kNone.
const std::vector<FaultName>& fault_names();
/// "all", or names with commas between them. Error(kBadInput).
std::vector<Fault> parse_faults_of_verify(const std::string& text);
const std::string& name_of(Fault fault);

/// The fault that this process bears from now on. Before any thread is started; forked ranks of verify alone.
void bear_fault(Fault fault);
bool bears_fault(Fault fault);

}  // namespace cohort
