#pragma once
// Is this layout the same training? Trains a few steps under a layout and compares every tensor (parameters, buffers, optimizer state) with
// one process that does the same arithmetic in the same order, on the user's own model and data.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cohort/data/source/source.h"
#include "cohort/job/config.h"
#include "cohort/job/layout.h"
#include "cohort/job/specs/faults.h"
#include "cohort/verify/suspects.h"

namespace cohort {

enum class Verdict { kSame, kDifferent, kNotProven };
/// "same", "different", "not proven"
const char* text_of(Verdict verdict);

/// How far one tensor is from where it should be, relative to how far training has moved it.
struct TensorVerdict {
  std::string name;
  double difference = 0;  ///< max |layout - reference| / max |reference - initial|
  double bound = 0;       ///< 0 where the bits are expected.
};

struct FaultResult {
  Fault fault = Fault::kNone;
  enum class Outcome { kFound, kMissed, kDoesNothing } outcome = Outcome::kDoesNothing;
  double factor = 0;  ///< Found: largest difference / what would still have passed. Infinite where the training ended with an error.
};

struct VerifyResult {
  Layout layout;
  int64_t steps = 0;
  Verdict verdict = Verdict::kNotProven;
  std::string reason;             ///< How exact, where and by how much, or why not and what to change.
  std::vector<Suspect> suspects;  ///< Modules that may be the cause; none where it is the same.
  /// Largest difference to one process that does the ranks' arithmetic in their order; 0: equal bit by bit; empty: there is no such
  /// process.
  std::optional<double> strict;
  std::vector<TensorVerdict> tensors;  ///< Largest difference / bound first.
  double to_one_process =
      0;                 ///< Distance of all weights to one process that takes the batch whole, relative to the whole update (2-norms).
  bool repeats = false;  ///< Two runs of the layout agree bitwise.
  std::vector<FaultResult> faults;

  bool ok() const { return verdict == Verdict::kSame; }
  bool all_faults_found() const;
};

/// One result for each of `layouts`; `done` gets each as it is there. Each of `faults` is put into one more run of each layout, which must
/// then be different. Forks its ranks; the calling process must have one thread. Error where a training fails, or a layout or option cannot
/// be verified. How the verdict comes about: verify.cpp.
void verify(const Config& config, const DataSet& data, const std::vector<Layout>& layouts, const std::vector<Fault>& faults,
            const std::function<void(const VerifyResult&)>& done);

}  // namespace cohort
