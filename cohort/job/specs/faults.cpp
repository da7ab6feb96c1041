#include "cohort/job/specs/faults.h"

#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr double kMany = 1e15;

}  // namespace

std::vector<InjectedFault> parse_faults(const std::string& text) {
  struct Kind {
    const char *name, *form, *example, *value;
    double least;
  };
  static constexpr Kind kKinds[] = {{"slow", "slow:RANK:FACTOR", "slow:1:2.5", "a factor above 1", 1},
                                    {"pause", "pause:RANK:SECONDS", "pause:1:30", "a number of seconds, 0 or more", 0},
                                    {"kill", "kill:RANK:STEP", "kill:1:7", "a step, counted from 0", 0}};
  std::vector<InjectedFault> faults;
  for (const std::string& part : split(text, ',')) {
    const std::vector<std::string> fields = split(part, ':');
    const Kind* kind = nullptr;
    for (const Kind& each : kKinds)
      if (!fields.empty() && fields[0] == each.name) kind = &each;
    if (!kind)
      fail(ErrorCode::kBadInput, name_settings("--inject "), text, ": '", fields.empty() ? "" : fields[0], "' is no fault",
           did_you_mean(fields.empty() ? "" : fields[0], {"slow", "pause", "kill"}),
           "; expected slow:RANK:FACTOR, pause:RANK:SECONDS or kill:RANK:STEP, several with commas");
    const auto refuse = [&](const std::string& why) {
      fail(ErrorCode::kBadInput, name_settings("--inject "), part, ": ", why, "; expected ", kind->form, ", for example ", kind->example);
    };
    if (fields.size() != 3) refuse(concat(kind->name, " takes a rank and ", kind->value, ", with colons"));
    const auto rank = parse_integer(fields[1]);
    const auto value = parse_number(fields[2]);
    if (!rank || *rank < 0) refuse(concat("'", fields[1], "' is no rank, which stands first and is a whole number from 0 on"));
    const bool is_step = std::string(kind->name) == "kill", is_factor = std::string(kind->name) == "slow";
    if (!value || !(*value >= kind->least && *value <= kMany) || (is_factor && *value == 1) || (is_step && *value != std::floor(*value)))
      refuse(concat("'", fields[2], "' is not ", kind->value));
    for (const InjectedFault& other : faults)
      if (other.kind == fields[0] && other.rank == *rank)
        fail(ErrorCode::kBadInput, name_settings("--inject "), text, ": two faults '", fields[0], "' of rank ", *rank,
             ", and a rank takes one of a kind; ", "leave one of them out");
    faults.push_back({fields[0], *rank, *value});
  }
  return faults;
}

Injection injection_for_rank(const std::vector<InjectedFault>& faults, int rank) {
  Injection injection;
  for (const InjectedFault& fault : faults) {
    if (fault.rank != rank) continue;
    if (fault.kind == "slow") injection.slow_factor = fault.value;
    else if (fault.kind == "pause") injection.pause_seconds = fault.value;
    else injection.kill_step = static_cast<int64_t>(fault.value);
  }
  return injection;
}

std::string selected_faults(const std::string& text, int num_ranks, bool slow_only) {
  const std::vector<std::string> parts = split(text, ',');
  const std::vector<InjectedFault> faults = parse_faults(text);
  std::vector<std::string> kept;
  for (size_t i = 0; i < faults.size(); ++i)
    if (faults[i].rank < num_ranks && (!slow_only || faults[i].kind == "slow")) kept.push_back(parts[i]);
  return join(kept, ",");
}

int64_t last_injected_rank(const std::vector<InjectedFault>& faults) {
  int64_t last = -1;
  for (const InjectedFault& fault : faults) last = std::max(last, fault.rank);
  return last;
}

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
