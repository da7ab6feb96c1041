#pragma once
// Faults that `cohort verify --faults` puts into a training on purpose, to show that it finds them. Each is a mistake that a change of the
// exchange, the schedule or the divided layers could make. What trains knows none of them: they come in where it lets a training be
// altered.

#include <string>
#include <vector>

namespace cohort {

struct Job;
struct TrainOptions;

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

/// Makes a training of `job` with these options bear the fault, on the ranks that it is about; others train as ever. For forked ranks,
/// which train nothing else: a part of it is the whole process's. `job` must outlive the training.
void inject_fault(Fault fault, const Job& job, TrainOptions& options);

}  // namespace cohort
