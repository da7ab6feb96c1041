#pragma once
// Which samples of which step the calling thread works on, so that dropout masks are the same under every layout. The trainer sets it
// around forward and backward; without it (a user's own loop) layers use torch's generator.

#include <cstdint>
#include <optional>

#include "cohort/base/export.h"

namespace cohort {

struct StepContext {
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t first_sample = 0;  ///< Position in the global batch of the first sample of the tensor being worked on.
};

/// Null outside of a step. Thread-local.
COHORT_API const StepContext* current_step_context();

/// Sets the context of this thread for its lifetime; scopes nest.
class COHORT_API StepContextScope {
 public:
  explicit StepContextScope(const StepContext& context);
  ~StepContextScope();
  StepContextScope(const StepContextScope&) = delete;

 private:
  StepContext context_;
  const StepContext* before_;
};

}  // namespace cohort
