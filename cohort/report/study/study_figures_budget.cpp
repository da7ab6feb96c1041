// Figure 11: the best value at a fixed budget of steps and at a fixed budget of epochs; and, where the study measured the test split, what
// the model of each such point has there: it was chosen by the validation split, so its value there is too good.

#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/report/draw/format.h"
#include "cohort/report/study/study_figures.h"
#include "cohort/study/analysis/steps_to_result.h"

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
  int64_t num_hollow = 0, num_left_out = 0, num_unmeasured = 0;
};

/// Points are the best ones by one metric, and show the value of the same or another one.
struct Shown {
  study::Metric best, drawn;
  bool is_other() const { return best != drawn; }
  std::string label() const {
    return is_other() ? concat(study::name_of(drawn), " at the best ", study::name_of(best)) : concat("best ", study::name_of(best));
  }
};

/// Of the test split; none for a metric that is not of the validation split.
std::optional<study::Metric> out_of_sample(study::Metric metric) {
  switch (metric) {
    case study::kValLoss:
      return study::kTestLoss;
    case study::kValError:
      return study::kTestError;
    case study::kValPrecision:
      return study::kTestPrecision;
    default:
      return std::nullopt;
  }
}

double value_at(const Trial& trial, int64_t step, study::Metric metric) {
  const auto found = std::lower_bound(trial.measurements.begin(), trial.measurements.end(), step,
                                      [](const study::Measurement& one, int64_t at) { return one.step < at; });
  return found == trial.measurements.end() || found->step != step ? std::nan("") : found->values[metric];
}

PlotSeries series_of(const StudyData& study, const Shown& shown, const std::vector<BestAtBudget>& found, Sums& sums) {
  PlotSeries series{.kind = PlotSeries::Kind::kJoined};
  for (const BestAtBudget& best : found) {
    const BatchStudy* batch = find_batch(study, best.batch_size);
    const Trial* trial = batch == nullptr ? nullptr : find_trial(*batch, best.trial_id);
    if (!best.value || trial == nullptr) {
      sums.num_left_out += batch != nullptr && !batch->trials.empty();
      continue;
    }
    const double value = shown.is_other() ? value_at(*trial, best.step, shown.drawn) : *best.value;
    if (std::isnan(value)) {
      ++sums.num_unmeasured;
      continue;
    }
    Mark mark{
        .x = static_cast<double>(best.batch_size), .y = value, .hollow = best.num_stopped > 0, .fields = trial_fields(*batch, *trial)};
    mark.fields.push_back(number_field(study::name_of(shown.best), *best.value));
    if (shown.is_other()) mark.fields.push_back(number_field(study::name_of(shown.drawn), value));
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
  if (sums.num_left_out > 0) note += plural(sums.num_left_out, "point") + " left out: trials of that batch size had a smaller budget. ";
  if (sums.num_unmeasured > 0) note += plural(sums.num_unmeasured, "point") + " left out: the test split was not measured there.";
  return note;
}

StudyChart chart_of(const std::string& budget, const Shown& shown) {
  std::string title = concat(shown.label(), " within a number of ", budget);
  if (!shown.is_other()) title.front() = 'B';
  StudyChart chart{.id = concat(shown.is_other() ? "fig11-test-" : "fig11-", budget), .title = std::move(title)};
  chart.x = {"batch size (samples)", PlotAxis::Scale::kLog2, std::nullopt};
  chart.y.label = shown.label();
  return chart;
}

void finish(StudyChart& chart, const Sums& sums, const Shown& shown) {
  chart.note = note_of(sums, shown.best);
  for (size_t i = 0; i < chart.series.size(); ++i) chart.series[i].look = static_cast<int>(i);
  chart.description = plural(static_cast<int64_t>(chart.series.size()), "budget") + ", one line each.";
  if (const auto range = range_of_marks({chart}, true); range && range->first > 0 && range->second > 8 * range->first)
    chart.y.scale = PlotAxis::Scale::kLog10;
}

StudyChart by_steps(const StudyData& study, const Shown& shown, const std::vector<int64_t>& asked) {
  StudyChart chart = chart_of("steps", shown);
  int64_t most = 0;
  for (const BatchStudy& batch : study.batches) most = std::max(most, train_steps_of(batch));
  Sums sums;
  std::vector<double> budgets(asked.begin(), asked.end());
  if (budgets.empty()) budgets = round_budgets(kLeastSteps, static_cast<double>(most));
  for (const double budget : budgets) {
    const auto steps = static_cast<int64_t>(budget);
    PlotSeries series = series_of(study, shown, study::best_at_steps(study, shown.best, steps), sums);
    if (series.marks.empty()) continue;
    series.name = count_text(steps) + " steps";
    chart.series.push_back(std::move(series));
  }
  finish(chart, sums, shown);
  return chart;
}

StudyChart by_epochs(const StudyData& study, const Shown& shown, const std::vector<double>& asked) {
  StudyChart chart = chart_of("epochs", shown);
  const auto num_samples = static_cast<double>(study.num_train_samples);
  double most = 0, least = 0;
  for (const BatchStudy& batch : study.batches) {
    const double samples = static_cast<double>(batch.batch_size);
    most = std::max(most, static_cast<double>(train_steps_of(batch)) * samples / num_samples);
    least = std::max(least, kLeastSteps * samples / num_samples);  // So many that the largest batch makes a few steps too.
  }
  Sums sums;
  for (const double epochs : asked.empty() ? round_budgets(std::min(least, most), most) : asked) {
    PlotSeries series = series_of(study, shown, study::best_at_epochs(study, shown.best, epochs), sums);
    if (series.marks.empty()) continue;
    series.name = coordinate(epochs, 6) + (epochs == 1 ? " epoch" : " epochs");
    chart.series.push_back(std::move(series));
  }
  finish(chart, sums, shown);
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
  std::vector<Shown> all{{goal.metric, goal.metric}};
  if (const std::optional<study::Metric> test = out_of_sample(goal.metric)) {
    const std::vector<study::Metric> measured = study::measured_metrics(study);
    if (std::find(measured.begin(), measured.end(), *test) != measured.end()) all.push_back({goal.metric, *test});
  }
  for (const Shown& shown : all) {
    StudyChart steps = by_steps(study, shown, asked.steps);
    if (!steps.series.empty()) figure.panels.push_back(std::move(steps));
    if (study.num_train_samples <= 0) continue;
    StudyChart epochs = by_epochs(study, shown, asked.epochs);
    if (!epochs.series.empty()) figure.panels.push_back(std::move(epochs));
  }
  return figure;
}

}  // namespace cohort::report
