// --dry-run. Steps are an upper bound: every trial that is left, with its whole budget; points that diverge come on top but end early.
// Hours are worker-hours divided by the workers: trials are independent. Batches of several workers are counted as if they divided evenly.

#include <cmath>
#include <cstdio>
#include <filesystem>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/study/search/study_queue.h"
#include "cohort/study/store/store.h"
#include "cohort/trials/study_runner.h"

namespace cohort {
namespace {

struct BatchForecast {
  int64_t batch_size = 0, num_trials = 0, train_steps = 0, num_done = 0, num_steps = 0, num_evaluations = 0;
  int team = 1;
  study::TrialRunner::Cost cost;
  double hours = 0;  ///< Of wall clock on all workers.
};

int64_t num_done(const std::string& folder, int64_t batch_size) {
  if (folder.empty() || !std::filesystem::exists(folder + "/study.db")) return 0;
  int64_t done = 0;
  for (const study::Trial& trial : study::Store::open_readonly(folder).trials(batch_size))
    done += trial.status == study::TrialStatus::kComplete || trial.status == study::TrialStatus::kCensored;
  return done;
}

void check_same_study(const study::StudySpec& spec, const std::string& folder) {
  if (folder.empty()) return;
  study::check_holds_nothing_else(folder);
  if (!std::filesystem::exists(folder + "/study.db")) return;
  const std::string difference = study::explain_difference(fingerprint(study::Store::open_readonly(folder).spec()), fingerprint(spec));
  if (!difference.empty()) fail(ErrorCode::kBadInput, folder, " holds another study: ", difference, "; give a new folder");
}

std::string hours_text(double hours) { return human_seconds(hours * 3600); }

void print_line(const BatchForecast& forecast) {
  const Json line{{"event", "forecast"},
                  {"batch_size", forecast.batch_size},
                  {"trials", forecast.num_trials},
                  {"done", forecast.num_done},
                  {"steps", forecast.num_steps},
                  {"team", forecast.team},
                  {"step_seconds", forecast.cost.step_seconds},
                  {"evaluation_seconds", forecast.cost.evaluation_seconds},
                  {"hours", forecast.hours}};
  std::printf("%s\n", line.dump().c_str());
}

void print_row(const BatchForecast& forecast) {
  std::printf("  %10s %8lld %8lld %14s %12s %12s %14s%s\n", with_commas(forecast.batch_size).c_str(),
              static_cast<long long>(forecast.num_trials), static_cast<long long>(forecast.num_done),
              with_commas(forecast.num_steps).c_str(), human_seconds(forecast.cost.step_seconds).c_str(),
              human_seconds(forecast.cost.evaluation_seconds).c_str(), hours_text(forecast.hours).c_str(),
              forecast.team > 1 ? concat("   on ", forecast.team, " workers").c_str() : "");
}

}  // namespace

void forecast_study(const study::StudySpec& spec, const StudyWorkload& workload, const std::string& folder, int num_workers, bool json) {
  check_same_study(spec, folder);
  const auto runner = make_study_runner(spec, workload, Group(), 0, {});
  if (!json) {
    std::printf("%s on %d worker(s), at most:\n", spec.name.c_str(), num_workers);
    std::printf("  %10s %8s %8s %14s %12s %12s %14s\n", "batch size", "trials", "done", "steps left", "a step", "evaluation", "time");
  }
  int64_t all_trials = 0, all_steps = 0;
  double all_hours = 0;
  for (const study::BatchSpec& batch : spec.batches) {
    BatchForecast forecast{.batch_size = batch.batch_size, .num_trials = batch.num_trials, .train_steps = batch.train_steps};
    forecast.num_done = std::min(num_done(folder, batch.batch_size), batch.num_trials);
    const int64_t left = forecast.num_trials - forecast.num_done;
    forecast.num_steps = left * batch.train_steps;
    forecast.num_evaluations = left * static_cast<int64_t>(study::evaluation_steps(spec.evaluation_ratio, batch.train_steps).size());
    forecast.team = study::team_size(spec, batch.batch_size, num_workers);
    forecast.cost = runner->measure(batch.batch_size);
    // A worker that has no trial of its own does nothing.
    const auto busy = static_cast<double>(std::max<int64_t>(1, std::min<int64_t>(num_workers, left * forecast.team)));
    forecast.hours = (static_cast<double>(forecast.num_steps) * forecast.cost.step_seconds +
                      static_cast<double>(forecast.num_evaluations) * forecast.cost.evaluation_seconds) /
                     busy / 3600;
    if (json) print_line(forecast);
    else print_row(forecast);
    all_trials += left;
    all_steps += forecast.num_steps;
    all_hours += forecast.hours;
  }
  if (json) {
    for (const std::string& sentence : spec.unknown) std::printf("%s\n", Json{{"event", "unknown"}, {"text", sentence}}.dump().c_str());
    const Json line{{"event", "total"}, {"trials", all_trials}, {"steps", all_steps}, {"hours", all_hours}, {"workers", num_workers}};
    std::printf("%s\n", line.dump().c_str());
    return;
  }
  std::printf("In all %s trials, %s steps, %s%s.\n", with_commas(all_trials).c_str(), with_commas(all_steps).c_str(),
              hours_text(all_hours).c_str(), spec.censor ? "; censoring usually saves most of it" : "");
  for (const std::string& sentence : spec.unknown) std::printf("Not known: %s\n", sentence.c_str());
}

}  // namespace cohort
