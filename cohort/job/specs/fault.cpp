#include "cohort/job/specs/fault.h"

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

Fault borne = Fault::kNone;

}  // namespace

const std::vector<FaultName>& fault_names() {
  static const std::vector<FaultName> names = {
      {Fault::kGradientScaled, "gradient-scaled",
       "the gradient of one replica (its last micro-batch's, where it is the only one) is 1.01 times what it should be"},
      {Fault::kBucketNotExchanged, "bucket-not-exchanged", "the gradient of one parameter is the first replica's alone"},
      {Fault::kShareDropped, "share-dropped", "the last micro-batch of one replica counts for nothing"},
      {Fault::kDropoutOfAnotherStep, "dropout-of-another-step", "one replica draws the dropout masks of the next step"},
      {Fault::kLearningRate, "learning-rate", "the learning rate is 1.01 times what it should be"},
      {Fault::kPartialSumMissing, "partial-sum-missing", "one rank of a tensor-parallel group adds nothing to sums"},
      {Fault::kStaleBorrowedWeight, "stale-borrowed-weight", "a stage goes on with the tied weight that it borrowed first"},
      {Fault::kBatchNormNotShared, "batch-norm-not-shared", "batch norm over all ranks uses each rank's own statistics"},
  };
  return names;
}

std::vector<Fault> parse_faults_of_verify(const std::string& text) {
  std::vector<std::string> known;
  for (const FaultName& entry : fault_names()) known.push_back(entry.name);
  std::vector<Fault> faults;
  for (const std::string& name : text == "all" ? known : split(text, ',')) {
    const auto found = std::find(known.begin(), known.end(), trim(name));
    if (found == known.end())
      fail(ErrorCode::kBadInput, name_settings("--faults: '"), name, "'", did_you_mean(name, known),
           " is no fault; expected all, or some of: ", join(known, " "));
    faults.push_back(fault_names()[static_cast<size_t>(found - known.begin())].fault);
  }
  return faults;
}

const std::string& name_of(Fault fault) {
  for (const FaultName& entry : fault_names())
    if (entry.fault == fault) return entry.name;
  static const std::string none = "none";
  return none;
}

void bear_fault(Fault fault) { borne = fault; }
bool bears_fault(Fault fault) { return borne == fault; }

}  // namespace cohort
