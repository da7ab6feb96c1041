#pragma once
// Checks whether a layout is the same training: trains a few steps and compares every tensor (parameters, buffers, optimizer state) with
// one process that does the same arithmetic in the same order, on the user's own model and data.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cohort/data/source/source.h"
#include "cohort/job/config.h"
#include "cohort/job/layout.h"
#include "cohort/verify/faults.h"
#include "cohort/verify/suspects.h"

namespace cohort {

enum class Verdict { kSame, kDifferent, kNotProven };
const char* text_of(Verdict verdict);

/// The difference of a tensor from its reference, relative to its update.
struct TensorVerdict {
  std::string name;
  double difference = 0;  ///< max |layout - reference| / max |reference - initial|
  double bound = 0;       ///< 0: equal bits are expected.
};

struct FaultResult {
  Fault fault = Fault::kNone;
  enum class Outcome { kFound, kMissed, kDoesNothing } outcome = Outcome::kDoesNothing;
  double factor = 0;  ///< Found: largest difference / largest that would pass. Infinite if the training ended with an error.
};

struct VerifyResult {
  Layout layout;
  int64_t steps = 0;
  Verdict verdict = Verdict::kNotProven;
  std::string reason;             ///< How exactly, or where it differs and what to change.
  std::vector<Suspect> suspects;  ///< Modules that may be the cause; empty if it is the same.
  /// Largest difference from one process that does the ranks' arithmetic in their order; 0: equal bits; empty: there is no such process.
  std::optional<double> strict;
  std::vector<TensorVerdict> tensors;  ///< Largest difference / bound first.
  /// Distance of all weights from one process that takes the batch whole, relative to the whole update (2-norms).
  double to_one_process = 0;
  bool repeats = false;  ///< Two runs of the layout have equal bits.
  std::vector<FaultResult> faults;

  bool ok() const { return verdict == Verdict::kSame; }
  bool all_faults_found() const;
};

/// Calls `done` with the result of each layout. Each of `faults` is injected into one more run of each layout, which must then differ.
/// Forks its ranks; the calling process must have one thread. Error if a training fails, or a layout or option cannot be verified.
void verify(const Config& config, const DataSet& data, const std::vector<Layout>& layouts, const std::vector<Fault>& faults,
            const std::function<void(const VerifyResult&)>& done);

}  // namespace cohort
