#include "cohort/cli/print_ladder.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>

#include "cohort/base/error.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/shell_text.h"
#include "cohort/base/text/text.h"
#include "cohort/job/option_rules.h"
#include "cohort/plan/explain/explain.h"
#include "cohort/plan/explain/ladder_sources.h"
#include "cohort/world/stop.h"

namespace cohort {
namespace {

constexpr double kTight = 1.25;

std::atomic<bool> stop{false};

/// What was typed, as far as `train` reads it, with the rung's options over it.
std::string train_line(const Arguments& arguments, const Rung& rung) {
  const Config& config = arguments.config;
  std::string line = concat("cohort train --model ", shell_quoted(config.model), " --data ",
                            arguments.was_given("data") ? shell_quoted(config.data) : "DATA");
  const auto add = [&](const char* name, const std::string& value) {
    const std::string option = concat("--", name, " ");
    if (!rung.options.starts_with(option) && rung.options.find(" " + option) == std::string::npos) line += " " + option + value;
  };
  if (const int ranks = rung.plan->candidate.layout.num_ranks(); ranks > 1) add("workers", std::to_string(ranks));
  add("global-batch", std::to_string(rung.plan->global_batch));
  for (const char* name : {"optimizer", "precision", "weights", "bucket-bytes"})
    if (arguments.was_given(name)) add(name, plain_value(*find_setting(name), config));
  if (arguments.was_given("context")) add("context", std::to_string(config.context));
  if (config.image_size > 0) add("image-size", std::to_string(config.image_size));
  if (config.memory_limit > 0) add("memory-limit", std::to_string(config.memory_limit));
  return line + (rung.options.empty() ? "" : " " + rung.options);
}

}  // namespace

bool print_ladder(const Arguments& arguments, const SearchRequest& request, const std::string& title) {
  LadderSources sources;
  if (arguments.was_given("model")) sources = ladder_sources(arguments.config, request);
  else sources.notes.emplace_back("shorter inputs and smaller models are forecast where --model names the model");
  Ladder ladder = make_ladder(request, sources, &stop, [] { stop = stop_requested(); });
  const Rung* const best = ladder.fastest();
  const bool any_fits = std::any_of(ladder.rungs.begin(), ladder.rungs.end(), [](const Rung& rung) { return rung.fits; });
  if (arguments.config.json) {
    std::printf("%s\n", to_json(ladder).dump().c_str());
  } else {
    std::printf("%s%s", title.empty() ? "" : (title + "\n").c_str(), ladder_text(ladder).c_str());
    if (best && arguments.was_given("model"))
      std::printf("\nThe fastest that trains the same on these workers:\n\n%s\n", train_line(arguments, *best).c_str());
  }
  std::fflush(stdout);  // Before the line on stderr.
  return any_fits;
}

void print_ladder_after(const Arguments& arguments, const SearchRequest& request, const std::string& title) {
  try {
    print_ladder(arguments, request, title);
  } catch (const Error&) {
    // A layout of which there is no plain one.
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
                            ", ", std::round(10 * plan.answer.best.objective / best) / 10, " times as fast. What each way out is worth:"));
}

void check_ladder_arguments(const Arguments& arguments) {
  for (const auto& [name, value] : arguments.options)
    if (name != "ladder" && name != "profile" && name != "cluster" && name != "objective" && name != "steps-curve")
      fail(ErrorCode::kBadInput, "--ladder and --", name, ": the ladder searches each way out for some tenths of a second, where --", name,
           " would do nothing; leave one out");
}

}  // namespace cohort
