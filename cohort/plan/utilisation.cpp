#include "cohort/plan/explain.h"

namespace cohort {

Utilisation utilisation_of(const SearchRequest& request, const RankedPlan& plan) {
  Utilisation out;
  if (plan.candidate.layout.pp == 1) return out;
  PlanProblem problem = request.problem;
  problem.global_batch = plan.global_batch;
  // The same cut and the same workers, but the whole batch goes through it at once, so that one of them works at a time.
  Candidate naive = plan.candidate;
  naive.layout.schedule = "gpipe";
  naive.layout.microbatches = 1;
  naive.layout.accumulate = 1;
  const StepForecast step = forecast_step(problem, naive);
  out.naive_step_seconds = step.step_seconds;
  for (const WorkerForecast& worker : step.workers)
    out.naive.push_back((worker.forward_seconds + worker.backward_seconds) / step.step_seconds);
  for (const WorkerForecast& worker : plan.forecast.workers)
    out.planned.push_back((worker.forward_seconds + worker.backward_seconds) / plan.forecast.step_seconds);
  return out;
}

}  // namespace cohort
