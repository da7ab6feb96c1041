#pragma once
// Faults that `cohort verify --faults` injects into a training, to show that it detects them. Each is a mistake that a change of the
// exchange, the schedule or the divided layers could make. The training code does not know them: they use the hooks of TrainOptions.

#include <string>
#include <vector>

namespace cohort {

struct Job;
struct TrainOptions;

/// What each of them does: fault_names().
enum class Fault {
  kNone,
  kGradientScaled,
  kBucketNotExchanged,
  kShareDropped,
  kDropoutOfAnotherStep,
  kLearningRate,
  kPartialSumMissing,
  kStaleBorrowedWeight,
  kBatchNormNotShared
};

struct FaultName {
  Fault fault;
  std::string name;  ///< For --faults.
  std::string sentence;
};
/// All except kNone.
const std::vector<FaultName>& fault_names();
/// "all", or names with commas between them. Error(kBadInput).
std::vector<Fault> parse_faults_of_verify(const std::string& text);
const std::string& name_of(Fault fault);

/// Changes `options` so that a training of `job` has the fault, on the affected ranks only. For forked ranks that train nothing else, since
/// some faults are of the whole process. `job` must outlive the training.
void inject_fault(Fault fault, const Job& job, TrainOptions& options);

}  // namespace cohort
