#include "cohort/models/graph/step_context.h"

namespace cohort {
namespace {
thread_local const StepContext* current_context = nullptr;
}  // namespace

const StepContext* current_step_context() { return current_context; }

StepContextScope::StepContextScope(const StepContext& context) : context_(context), before_(current_context) {
  current_context = &context_;
}

StepContextScope::~StepContextScope() { current_context = before_; }

}  // namespace cohort
