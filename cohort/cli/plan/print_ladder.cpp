#include "cohort/cli/plan/plan.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>

#include "cohort/base/error.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/output.h"
#include "cohort/cli/options/train_line.h"
#include "cohort/plan/explain.h"
#include "cohort/plan/ladder.h"
#include "cohort/world/stop.h"

namespace cohort {
namespace {

constexpr double kTight = 1.25;

std::atomic<bool> stop{false};

}  // namespace

bool print_ladder(const Arguments& arguments, const SearchRequest& request, const std::string& title) {
  FallbackSources sources;
  if (arguments.was_given("model")) sources = ladder_sources(arguments.config, request);
  else sources.notes.emplace_back("shorter inputs and smaller models are forecast where --model names the model");
  FallbackOptions ladder = find_fallback_options(request, sources, &stop, [] { stop = stop_requested(); });
  const FallbackOption* const best = ladder.fastest();
  const bool any_fits = std::any_of(ladder.rungs.begin(), ladder.rungs.end(), [](const FallbackOption& rung) { return rung.fits; });
  if (arguments.config.json) {
    print_line(to_json(ladder));
  } else {
    std::printf("%s%s", title.empty() ? "" : (title + "\n").c_str(), fallback_text(ladder).c_str());
    if (best)
      std::printf(
          "\nThe fastest with the same model and samples on these workers:\n\n%s\n",
          train_line(
              arguments, request.problem.profile,
              {.num_ranks = best->plan->candidate.layout.num_ranks(), .global_batch = best->plan->global_batch, .options = best->options})
              .c_str());
  }
  std::fflush(stdout);  // The line on stderr comes after it.
  return any_fits;
}

void print_ladder_after(const Arguments& arguments, const SearchRequest& request, const std::string& title) {
  try {
    print_ladder(arguments, request, title);
  } catch (const Error&) {
    // This layout has no fallback.
  }
}

void print_ladder_if_tight(const Arguments& arguments, const Plan& plan) {
  if (plan.request.objective == Objective::kMemory) return;
  SearchRequest free = without_memory_limits(plan.request);
  free.search_seconds = plan.request.search_seconds / 5;
  free.num_runners_up = 0;
  double best = plan.answer.best.objective;
  try {
    const PlanAnswer answer = search_plan(free, [](const SearchProgress&) { stop = stop_requested(); }, &stop);
    best = answer.best.objective;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInfeasible && error.code() != ErrorCode::kBadInput) throw;
  }
  stop = stop_requested();
  if (stop || plan.answer.best.objective < kTight * best) return;
  print_ladder_after(arguments, plan.request,
                     concat("\nIt fits only badly: without a limit of memory a plan would take ", objective_text(free.objective, best),
                            ", ", std::round(10 * plan.answer.best.objective / best) / 10, " times as fast. What each fallback is worth:"));
}

void check_ladder_arguments(const Arguments& arguments) {
  for (const auto& [name, value] : arguments.options)
    if (name != "ladder" && name != "profile" && name != "cluster" && name != "objective" && name != "steps-curve")
      fail(ErrorCode::kBadInput, "--ladder and --", name, ": the ladder searches each fallback for some tenths of a second, where --", name,
           " would do nothing; leave one out");
}

}  // namespace cohort
