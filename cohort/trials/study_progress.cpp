// Time left = elapsed time x work left / work done. The work left is an estimate that improves: trials still to decide x the mean share of
// its budget that a trial used so far; points that diverge are replaced by others.
#include "cohort/trials/study_progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/study/analysis/steps_to_result.h"

namespace cohort {
namespace {
constexpr double kRedrawSeconds = 0.1, kPlainSeconds = 10;
constexpr double kMinSecondsForForecast = 1;  ///< Before that the estimate is too noisy.
constexpr int kMaxBarColumns = 30;
}  // namespace

StudyProgress::StudyProgress(ProgressOutput output, bool enabled)
    : output_(std::move(output)), enabled_(enabled), began_at_(output_.clock()) {}

StudyProgress::~StudyProgress() { finish(); }

std::string StudyProgress::line() const {
  const int64_t all = state_.trials_done + state_.trials_left;
  std::string text = concat("trial ", with_commas(state_.trials_done), "/", with_commas(all), ", ", state_.running, " running");
  const double elapsed = output_.clock() - began_at_;
  if (elapsed >= kMinSecondsForForecast && state_.work_done > 0 && state_.work_left > 0)
    text += concat(", ", human_seconds(std::max(1.0, std::round(elapsed * state_.work_left / state_.work_done))), " left");
  return text;
}

void StudyProgress::show() {
  std::string text = line();
  if (output_.is_terminal) {
    const int64_t all = std::max<int64_t>(1, state_.trials_done + state_.trials_left);
    const int usable = std::max(1, output_.width() - 1);
    const int columns = std::min(kMaxBarColumns, usable - static_cast<int>(text.size()) - 2);
    if (columns >= 5) {
      const auto full = static_cast<size_t>(columns * state_.trials_done / all);
      text = std::string(full, '#') + std::string(static_cast<size_t>(columns) - full, '-') + "  " + text;
    }
    output_.write("\r" + text.substr(0, static_cast<size_t>(usable)) + "\x1b[K");
    drawn_ = true;
  } else {
    output_.write(text + "\n");
  }
  shown_at_ = output_.clock();
}

void StudyProgress::update(const State& state) {
  state_ = state;
  if (!enabled_ || finished_) return;
  if (shown_at_ < 0 || output_.clock() - shown_at_ >= (output_.is_terminal ? kRedrawSeconds : kPlainSeconds)) show();
}

void StudyProgress::note(const std::string& text, LogLevel level) {
  if (drawn_ && !finished_) output_.write("\r\x1b[K");
  log_line(level, text);
  if (drawn_ && !finished_) show();
}

void StudyProgress::finish() {
  if (finished_) return;
  if (enabled_ && shown_at_ >= 0) show();
  if (drawn_) output_.write("\n");
  finished_ = true;
}

namespace {

using study::BatchStudy;
using study::StudyData;
using study::StudySpec;

/// Whether the batch size belongs to this run; the store may hold more.
bool is_asked_for(const StudySpec& spec, int64_t batch_size) {
  return std::any_of(spec.batches.begin(), spec.batches.end(), [&](const auto& batch) { return batch.batch_size == batch_size; });
}

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

}  // namespace

std::string halving_warning() {
  return "successive halving is biased: trials that start slowly (low learning rates, high momentum, late decay) are cut by their early "
         "curves, though they are often the best at the end; steps to result may be too many, and differently so at each batch size";
}

std::string trial_line(int64_t batch_size, const study::Trial& trial) {
  double best = std::nan(""), best_precision = std::nan("");
  for (const study::Measurement& measurement : trial.measurements) {
    best = std::fmin(best, measurement.values[study::kValError]);
    best_precision = std::fmax(best_precision, measurement.values[study::kValPrecision]);
  }
  Json line{{"event", "trial"},
            {"batch_size", batch_size},
            {"trial", trial.id},
            {"status", name_of(trial.status)},
            {"steps", trial.steps},
            {"seconds", finite_json(trial.seconds)},
            {"parameters", trial.parameters},
            {"best_val_error", finite_json(best)}};
  if (std::isfinite(best_precision)) line["best_val_precision"] = best_precision;
  return line.dump();
}

Json work_saved(const StudyData& data, const StudySpec& spec) {
  int64_t trained = 0, budgets = 0;
  double trained_samples = 0, budget_samples = 0;
  for (const BatchStudy& batch : data.batches) {
    if (!is_asked_for(spec, batch.batch_size)) continue;
    for (const study::Trial& trial : batch.trials) {
      // A diverged trial would have ended at the same step without censoring.
      const int64_t budget = trial.status == study::TrialStatus::kInfeasible ? trial.steps : std::max(trial.steps, batch.train_steps);
      trained += trial.steps;
      budgets += budget;
      trained_samples += static_cast<double>(trial.steps) * static_cast<double>(batch.batch_size);
      budget_samples += static_cast<double>(budget) * static_cast<double>(batch.batch_size);
    }
  }
  return {{"trained_steps", trained}, {"budget_steps", budgets}, {"trained_samples", trained_samples}, {"budget_samples", budget_samples}};
}

void print_steps_lines(const StudyData& data, const StudySpec& spec) {
  for (const study::StepsToResult& result : steps_to_result(data, spec.goals.front())) {
    if (!is_asked_for(spec, result.batch_size)) continue;
    Json line{{"event", "steps_to_result"},
              {"batch_size", result.batch_size},
              {"steps", result.steps ? Json(*result.steps) : Json(nullptr)},
              {"trial", result.steps ? Json(result.trial_id) : Json(nullptr)},
              {"goal", spec.goals.front().text()},
              {"trials", result.num_kept},
              {"reached", result.num_reached},
              {"infeasible", result.num_infeasible}};
    if (spec.halving) line["warning"] = halving_warning();
    std::printf("%s\n", line.dump().c_str());
  }
  Json line{{"event", "work"}};
  line.update(work_saved(data, spec));
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

void print_steps_table(const StudyData& data, const StudySpec& spec, const std::string& folder) {
  std::printf("%s: steps to %s\n", spec.name.c_str(), spec.goals.front().text().c_str());
  std::printf("  %10s %12s %14s %8s %8s %11s   %s\n", "batch size", "steps", "samples", "trials", "reached", "infeasible", "best trial");
  for (const study::StepsToResult& result : steps_to_result(data, spec.goals.front())) {
    if (!is_asked_for(spec, result.batch_size)) continue;
    const std::string steps = result.steps ? with_commas(*result.steps) : "not reached";
    const std::string samples = result.steps ? with_commas(*result.steps * result.batch_size) : "";
    const BatchStudy* batch = find_batch(data, result.batch_size);
    const study::Trial* trial = batch && result.steps ? find_trial(*batch, result.trial_id) : nullptr;
    const std::string best = trial ? concat(trial->id, ": ", study::parameters_text(trial->parameters)) : "";
    std::printf("  %10s %12s %14s %8lld %8lld %11lld   %s\n", with_commas(result.batch_size).c_str(), steps.c_str(), samples.c_str(),
                static_cast<long long>(result.num_kept), static_cast<long long>(result.num_reached),
                static_cast<long long>(result.num_infeasible), best.c_str());
  }
  const Json work = work_saved(data, spec);
  const auto trained = work.at("trained_steps").get<int64_t>(), budgets = work.at("budget_steps").get<int64_t>();
  if (trained > 0 && trained < budgets)
    std::printf("  trained %s steps; whole budgets would have been %s (%s times as many)\n", with_commas(trained).c_str(),
                with_commas(budgets).c_str(), short_number(static_cast<double>(budgets) / static_cast<double>(trained)).c_str());
  if (spec.halving) std::printf("  warning: %s\n", halving_warning().c_str());
  std::printf("Next: cohort study report %s\n", folder.c_str());
  std::fflush(stdout);
}

}  // namespace cohort
