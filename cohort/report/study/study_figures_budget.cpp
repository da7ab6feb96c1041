// Figures within a budget. 9 and 10: every trial as a point of its hyperparameters, and whether it reached the goal within a budget of
// steps or epochs, also for several studies. 11: the best value at fixed budgets of steps and of epochs; where the study measured the test
// split, also the test value of the same models, as those on the validation split are biased by the selection.

#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/report/draw/format.h"
#include "cohort/report/study/study_figures.h"
#include "cohort/study/analysis/steps_to_result.h"

namespace cohort::report {
namespace {

enum Outcome { kReached, kNotReached, kStopped, kInfeasible, kNumOutcomes };
constexpr size_t kMaxSizes = 4;  // Batch sizes per study in figures of several studies.
struct OutcomeLook {
  const char* name;
  int look;  ///< Colour and shape: circle, square, diamond, cross.
};
constexpr OutcomeLook kLooks[kNumOutcomes] = {
    {"goal achieved", 0}, {"not achieved", 2}, {"stopped before the budget", 3}, {"infeasible (diverged)", 6}};

Outcome outcome_of(const Trial& trial, const GoalSpec& goal, int64_t budget_steps) {
  if (trial.status == study::TrialStatus::kInfeasible) return kInfeasible;
  const auto steps = study::steps_of_trial(trial, goal);
  if (steps && *steps <= budget_steps) return kReached;
  return trial.steps >= budget_steps ? kNotReached : kStopped;
}

/// The axes: learning rate and momentum where momentum is searched; else learning rate and the best value of the trial.
struct Plane {
  bool has_momentum;
  GoalSpec goal;

  std::optional<double> y_of(const Trial& trial, int64_t budget_steps) const {
    if (has_momentum) {
      const auto momentum = study::find_parameter(trial.parameters, "momentum");
      return momentum ? std::optional(1 - *momentum) : std::nullopt;
    }
    const auto best = best_measurement(trial, goal.metric, budget_steps);
    return best ? std::optional(best->values[goal.metric]) : std::nullopt;
  }
};

StudyChart panel(const BatchStudy& batch, const Plane& plane, const std::string& id, int64_t budget_steps) {
  StudyChart chart;
  chart.id = id + "-" + std::to_string(batch.batch_size);
  chart.title = "Batch " + count_text(batch.batch_size) + ", " + count_text(budget_steps) + " steps";
  chart.size = StudyChart::Size::kSmall;
  chart.has_legend = false;
  chart.x = {"learning rate", PlotAxis::Scale::kLog10, std::nullopt};
  chart.y = plane.has_momentum ? PlotAxis{"1 - momentum", PlotAxis::Scale::kLog10, std::nullopt}
                               : PlotAxis{std::string("best ") + study::name_of(plane.goal.metric), PlotAxis::Scale::kLinear, std::nullopt};
  for (const OutcomeLook& look : kLooks) chart.series.push_back({.name = look.name, .look = look.look});
  const std::vector<size_t> kept = study::counted_trials(batch);
  int64_t num_reached = 0, num_infeasible = 0;
  for (size_t i = 0; i < batch.trials.size(); ++i) {
    const Trial& trial = batch.trials[i];
    const bool is_kept = std::find(kept.begin(), kept.end(), i) != kept.end();
    if (!is_kept && trial.status != study::TrialStatus::kInfeasible) continue;
    const auto rate = study::find_parameter(trial.parameters, "learning_rate");
    const auto y = plane.y_of(trial, budget_steps);
    if (!rate || !y) continue;
    const Outcome outcome = outcome_of(trial, plane.goal, budget_steps);
    Mark mark{.x = *rate, .y = *y, .fields = trial_fields(batch, trial)};
    mark.fields.push_back(text_field("outcome", kLooks[outcome].name));
    mark.fields.push_back(number_field("budget (steps)", static_cast<double>(budget_steps)));
    if (const auto steps = study::steps_of_trial(trial, plane.goal))
      mark.fields.push_back(number_field("steps to the goal", static_cast<double>(*steps)));
    if (!plane.has_momentum) mark.fields.push_back(number_field(study::name_of(plane.goal.metric), *y));
    chart.series[outcome].marks.push_back(std::move(mark));
    num_reached += outcome == kReached;
    num_infeasible += outcome == kInfeasible;
  }
  chart.description = plural(num_reached, "trial") + " achieved the goal, " + count_text(num_infeasible) + " diverged.";
  return chart;
}

/// Gives all panels the same axes; without momentum the y axis ignores diverged trials, whose values may be huge.
void share_axes(std::vector<StudyChart>& panels, bool has_momentum) {
  const auto x = range_of_marks(panels, false);
  std::vector<StudyChart> feasible = panels;
  if (!has_momentum)
    for (StudyChart& chart : feasible) chart.series[kInfeasible].marks.clear();
  const auto y = range_of_marks(feasible, true);
  for (StudyChart& chart : panels) {
    chart.x.range = x;
    chart.y.range = y;
  }
}

struct Budget {
  study::StepsToResult middle;  ///< The middle one of the batch sizes that reached the goal.
  double steps;                 ///< Twice its steps, rounded up.
};

std::optional<Budget> budget_of(const study::Analysis& analysis) {
  std::vector<study::StepsToResult> reached;
  for (const study::StepsToResult& result : analysis.steps) {
    if (result.steps) reached.push_back(result);
  }
  if (reached.empty()) return std::nullopt;
  const study::StepsToResult& middle = reached[reached.size() / 2];
  return Budget{middle, round_digits(2 * static_cast<double>(*middle.steps), 2, true)};
}

std::vector<int64_t> sizes_with_trials(const StudyData& study) {
  std::vector<int64_t> sizes;
  for (const BatchStudy& batch : study.batches) {
    if (!batch.trials.empty()) sizes.push_back(batch.batch_size);
  }
  return sizes;
}

/// At most kMaxSizes, including the first and the last.
std::vector<int64_t> spread(const std::vector<int64_t>& sizes) {
  if (sizes.size() <= kMaxSizes) return sizes;
  std::vector<int64_t> out;
  for (size_t i = 0; i < kMaxSizes; ++i) out.push_back(sizes[i * (sizes.size() - 1) / (kMaxSizes - 1)]);
  return out;
}

std::vector<int64_t> common_sizes(const std::vector<AnalysedStudy>& studies) {
  std::vector<int64_t> common = sizes_with_trials(*studies.front().study);
  for (const AnalysedStudy& one : studies) {
    const std::vector<int64_t> sizes = sizes_with_trials(*one.study);
    std::erase_if(common, [&](int64_t size) { return std::find(sizes.begin(), sizes.end(), size) == sizes.end(); });
  }
  return common;
}

using study::BestAtBudget;

constexpr size_t kMaxBudgets = 6;
constexpr int64_t kLeastSteps = 10;

/// The budget of a trial; in studies limited by time, the steps of the longest trial.
int64_t train_steps_of(const BatchStudy& batch) {
  if (batch.train_steps > 0) return batch.train_steps;
  int64_t most = 0;
  for (const Trial& trial : batch.trials) most = std::max(most, trial.steps);
  return most;
}

/// 1, 2 and 5 times powers of ten in [low, high], thinned to kMaxBudgets including the largest.
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

/// The metric that selects the best points, and the one that is drawn.
struct Shown {
  study::Metric best, drawn;
  bool is_other() const { return best != drawn; }
  std::string label() const {
    return is_other() ? concat(study::name_of(drawn), " at the best ", study::name_of(best)) : concat("best ", study::name_of(best));
  }
};

/// The same metric on the test split; none for a metric that is not of the validation split.
std::optional<study::Metric> out_of_sample(study::Metric metric) {
  if (metric < study::kValLoss || metric > study::kValPrecision) return std::nullopt;
  return static_cast<study::Metric>(metric + (study::kTestLoss - study::kValLoss));  // Splits have the same order of metrics.
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
  chart.x = batch_axis();
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

/// The best values within several budgets, of steps or (`in_epochs`) of epochs.
StudyChart by_budget(const StudyData& study, const Shown& shown, bool in_epochs, std::vector<double> budgets) {
  StudyChart chart = chart_of(in_epochs ? "epochs" : "steps", shown);
  if (budgets.empty()) {
    const auto num_samples = static_cast<double>(study.num_train_samples);
    double most = 0, least = in_epochs ? 0 : kLeastSteps;
    for (const BatchStudy& batch : study.batches) {
      const auto steps = static_cast<double>(train_steps_of(batch)), samples = static_cast<double>(batch.batch_size);
      most = std::max(most, in_epochs ? steps * samples / num_samples : steps);
      if (in_epochs) least = std::max(least, kLeastSteps * samples / num_samples);  // So that the largest batch makes a few steps too.
    }
    budgets = round_budgets(in_epochs ? std::min(least, most) : least, most);
  }
  Sums sums;
  for (const double budget : budgets) {
    const auto steps = static_cast<int64_t>(budget);
    const auto best = in_epochs ? study::best_at_epochs(study, shown.best, budget) : study::best_at_steps(study, shown.best, steps);
    PlotSeries series = series_of(study, shown, best, sums);
    if (series.marks.empty()) continue;
    series.name = in_epochs ? coordinate(budget, 6) + (budget == 1 ? " epoch" : " epochs") : count_text(steps) + " steps";
    chart.series.push_back(std::move(series));
  }
  finish(chart, sums, shown);
  return chart;
}

Plane plane_of(const OneStudy& one) { return {searched_values(one.study, "momentum").size() > 1, one.analysis.goal}; }

}  // namespace

void draw_scatter_steps(const OneStudy& one, Figure& figure) {
  const std::optional<Budget> budget = budget_of(one.analysis);
  if (!budget) return;
  const std::vector<int64_t>& requested = one.budgets.steps;
  const double budget_steps = requested.empty() ? budget->steps : static_cast<double>(requested.front());
  const Plane plane = plane_of(one);
  figure.intro = "The " + std::string(plane.has_momentum ? "learning rate and momentum" : "learning rate") +
                 " of every trial, and whether it reached " + plane.goal.text() + " within " + plain_number(budget_steps) + " steps" +
                 (requested.empty() ? ": as many as batch size " + count_text(budget->middle.batch_size) + " needs twice." : ".");
  for (const BatchStudy& batch : one.study.batches)
    if (!batch.trials.empty()) figure.panels.push_back(panel(batch, plane, "fig9", static_cast<int64_t>(budget_steps)));
  share_axes(figure.panels, plane.has_momentum);
}

void draw_scatter_epochs(const OneStudy& one, Figure& figure) {
  const std::optional<Budget> budget = budget_of(one.analysis);
  const auto num_samples = static_cast<double>(one.study.num_train_samples);
  if (!budget || num_samples <= 0) return;
  double epochs = round_digits(budget->steps * static_cast<double>(budget->middle.batch_size) / num_samples, 2, true);
  if (epochs > 0 && !one.budgets.epochs.empty()) epochs = one.budgets.epochs.front();
  if (epochs <= 0) return;
  const Plane plane = plane_of(one);
  figure.intro = "The same trials within " + coordinate(epochs, 6) + " epochs: every batch size sees as many samples.";
  for (const BatchStudy& batch : one.study.batches) {
    if (batch.trials.empty()) continue;
    const double steps = epochs * num_samples / static_cast<double>(batch.batch_size);
    figure.panels.push_back(panel(batch, plane, "fig10", std::max<int64_t>(1, static_cast<int64_t>(steps))));
  }
  share_axes(figure.panels, plane.has_momentum);
}

void draw_budgets(const OneStudy& one, Figure& figure) {
  const StudyData& study = one.study;
  const GoalSpec& goal = one.analysis.goal;
  std::vector<Shown> all{{goal.metric, goal.metric}};
  if (const std::optional<study::Metric> test = out_of_sample(goal.metric)) {
    const std::vector<study::Metric> measured = study::measured_metrics(study);
    if (std::find(measured.begin(), measured.end(), *test) != measured.end()) all.push_back({goal.metric, *test});
  }
  for (const Shown& shown : all) {
    StudyChart steps = by_budget(study, shown, false, {one.budgets.steps.begin(), one.budgets.steps.end()});
    if (!steps.series.empty()) figure.panels.push_back(std::move(steps));
    if (study.num_train_samples <= 0) continue;
    StudyChart epochs = by_budget(study, shown, true, one.budgets.epochs);
    if (!epochs.series.empty()) figure.panels.push_back(std::move(epochs));
  }
}

Figure figure_scatter_studies(const std::vector<AnalysedStudy>& studies) {
  Figure figure{.id = "fig10_scatter_studies",
                .heading = "Trials of several studies",
                .intro =
                    "The trials of each study at a few batch sizes, those that all have where there are any: which hyperparameters reach "
                    "its goal within twice the steps that its middle batch size needs?",
                .shares_legend = true};
  if (studies.size() < 2) return figure;
  const bool has_momentum = std::all_of(studies.begin(), studies.end(),
                                        [](const AnalysedStudy& one) { return searched_values(*one.study, "momentum").size() > 1; });
  const bool is_one_metric = std::all_of(studies.begin(), studies.end(), [&](const AnalysedStudy& one) {
    return one.analysis->goal.metric == studies.front().analysis->goal.metric;
  });
  const std::vector<int64_t> common = common_sizes(studies);
  for (size_t i = 0; i < studies.size(); ++i) {
    const auto& [study, name, analysis] = studies[i];
    const std::optional<Budget> budget = budget_of(*analysis);
    if (!budget) continue;
    const Plane plane{has_momentum, analysis->goal};
    for (const int64_t size : spread(common.empty() ? sizes_with_trials(*study) : common)) {
      StudyChart chart =
          panel(*find_batch(*study, size), plane, "fig10-study" + std::to_string(i + 1), static_cast<int64_t>(budget->steps));
      chart.title = name + ", batch " + count_text(size) + ", " + count_text(static_cast<int64_t>(budget->steps)) + " steps";
      for (PlotSeries& series : chart.series) {
        for (Mark& mark : series.marks) mark.fields.insert(mark.fields.begin(), text_field("study", name));
      }
      figure.panels.push_back(std::move(chart));
    }
  }
  share_axes(figure.panels, has_momentum);
  if (!has_momentum && !is_one_metric) {  // Values of different metrics do not share an axis.
    for (StudyChart& chart : figure.panels) chart.y.range.reset();
  }
  return figure;
}

}  // namespace cohort::report
