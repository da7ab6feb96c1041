// Figure 11: the best value at a fixed budget of steps and at a fixed budget of epochs.

#include <algorithm>
#include <cmath>

#include "cohort/report/draw/format.h"
#include "cohort/report/study/study_figures.h"

namespace cohort::report {
namespace {

using study::BestAtBudget;

constexpr size_t kMaxBudgets = 6;
constexpr int64_t kLeastSteps = 10;

/// The budget of a trial; of studies by time, what the longest trial got.
int64_t train_steps_of(const BatchStudy& batch) {
  if (batch.train_steps > 0) return batch.train_steps;
  int64_t most = 0;
  for (const Trial& trial : batch.trials) most = std::max(most, trial.steps);
  return most;
}

/// 1, 2 and 5 times powers of ten in [low, high]; every second or third one where there are too many, the largest always.
std::vector<double> round_budgets(double low, double high) {
  std::vector<double> all, out;
  if (!(low > 0) || !(high >= low)) return out;
  for (int power = static_cast<int>(std::floor(std::log10(low))); power <= static_cast<int>(std::ceil(std::log10(high))); ++power) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double value = power < 0 ? factor / std::pow(10, -power) : factor * std::pow(10, power);
      if (value >= low && value <= high) all.push_back(value);
    }
  }
  const size_t every = (all.size() + kMaxBudgets - 1) / kMaxBudgets;
  for (size_t i = all.size(); i > 0 && every > 0; i = i > every ? i - every : 0) out.push_back(all[i - 1]);
  std::reverse(out.begin(), out.end());
  return out;
}

struct Sums {
  int64_t num_hollow = 0, num_left_out = 0;
};

PlotSeries series_of(const StudyData& study, study::Metric metric, const std::vector<BestAtBudget>& found, Sums& sums) {
  PlotSeries series{.kind = PlotSeries::Kind::kJoined};
  for (const BestAtBudget& best : found) {
    const BatchStudy* batch = find_batch(study, best.batch_size);
    const Trial* trial = batch == nullptr ? nullptr : find_trial(*batch, best.trial_id);
    if (!best.value || trial == nullptr) {
      sums.num_left_out += batch != nullptr && !batch->trials.empty();
      continue;
    }
    Mark mark{.x = static_cast<double>(best.batch_size),
              .y = *best.value,
              .hollow = best.num_stopped > 0,
              .fields = trial_fields(*batch, *trial)};
    mark.fields.push_back(number_field(study::name_of(metric), *best.value));
    mark.fields.push_back(number_field("at step", static_cast<double>(best.step)));
    mark.fields.push_back(number_field("trials stopped before", static_cast<double>(best.num_stopped)));
    sums.num_hollow += mark.hollow;
    series.marks.push_back(std::move(mark));
  }
  return series;
}

std::string note_of(const Sums& sums, study::Metric metric) {
  std::string note;
  if (sums.num_hollow > 0)
    note =
        "Hollow: not valid as a best value, because trials were stopped before that budget (those that could no longer matter for the "
        "goal); "
        "the true value may be " +
        std::string(study::higher_is_better(metric) ? "higher. " : "lower. ");
  if (sums.num_left_out > 0) note += plural(sums.num_left_out, "point") + " left out: trials of that batch size had a smaller budget.";
  return note;
}

StudyChart chart_of(const std::string& id, const std::string& title, study::Metric metric) {
  StudyChart chart{.id = id, .title = title};
  chart.x = {"batch size (samples)", PlotAxis::Scale::kLog2, std::nullopt};
  chart.y.label = std::string("best ") + study::name_of(metric);
  return chart;
}

void finish(StudyChart& chart, const Sums& sums, study::Metric metric) {
  chart.note = note_of(sums, metric);
  for (size_t i = 0; i < chart.series.size(); ++i) chart.series[i].look = static_cast<int>(i);
  chart.description = plural(static_cast<int64_t>(chart.series.size()), "budget") + ", one line each.";
  if (const auto range = range_of_marks({chart}, true); range && range->first > 0 && range->second > 8 * range->first)
    chart.y.scale = PlotAxis::Scale::kLog10;
}

StudyChart by_steps(const StudyData& study, study::Metric metric, const std::vector<int64_t>& asked) {
  StudyChart chart = chart_of("fig11-steps", std::string("Best ") + study::name_of(metric) + " within a number of steps", metric);
  int64_t most = 0;
  for (const BatchStudy& batch : study.batches) most = std::max(most, train_steps_of(batch));
  Sums sums;
  std::vector<double> budgets(asked.begin(), asked.end());
  if (budgets.empty()) budgets = round_budgets(kLeastSteps, static_cast<double>(most));
  for (const double budget : budgets) {
    const auto steps = static_cast<int64_t>(budget);
    PlotSeries series = series_of(study, metric, study::best_at_steps(study, metric, steps), sums);
    if (series.marks.empty()) continue;
    series.name = count_text(steps) + " steps";
    chart.series.push_back(std::move(series));
  }
  finish(chart, sums, metric);
  return chart;
}

StudyChart by_epochs(const StudyData& study, study::Metric metric, const std::vector<double>& asked) {
  StudyChart chart = chart_of("fig11-epochs", std::string("Best ") + study::name_of(metric) + " within a number of epochs", metric);
  const auto num_samples = static_cast<double>(study.num_train_samples);
  double most = 0, least = 0;
  for (const BatchStudy& batch : study.batches) {
    const double samples = static_cast<double>(batch.batch_size);
    most = std::max(most, static_cast<double>(train_steps_of(batch)) * samples / num_samples);
    least = std::max(least, kLeastSteps * samples / num_samples);  // So many that the largest batch makes a few steps too.
  }
  Sums sums;
  for (const double epochs : asked.empty() ? round_budgets(std::min(least, most), most) : asked) {
    PlotSeries series = series_of(study, metric, study::best_at_epochs(study, metric, epochs), sums);
    if (series.marks.empty()) continue;
    series.name = coordinate(epochs, 6) + (epochs == 1 ? " epoch" : " epochs");
    chart.series.push_back(std::move(series));
  }
  finish(chart, sums, metric);
  return chart;
}

}  // namespace

Figure figure_budgets(const StudyData& study, const study::GoalSpec& goal, const StudyBudgets& asked) {
  Figure figure{
      .id = "fig11_budgets",
      .heading = "Best value at a fixed budget",
      .intro =
          "The same trials asked the other way round: what can be had for a number of steps, or of passes over the data? A budget of "
          "steps favours large batches, one of epochs small ones."};
  StudyChart steps = by_steps(study, goal.metric, asked.steps);
  if (!steps.series.empty()) figure.panels.push_back(std::move(steps));
  if (study.num_train_samples <= 0) return figure;
  StudyChart epochs = by_epochs(study, goal.metric, asked.epochs);
  if (!epochs.series.empty()) figure.panels.push_back(std::move(epochs));
  return figure;
}

}  // namespace cohort::report
