// Figures 9 and 10: every trial as a point of its metaparameters: did it reach the goal within a budget? 9 for one study, within steps and
// within epochs; 10 for several studies beside each other.

#include <algorithm>
#include <cmath>

#include "cohort/report/draw/format.h"
#include "cohort/report/study/study_figures.h"

namespace cohort::report {
namespace {

enum Outcome { kReached, kNotReached, kStopped, kInfeasible, kNumOutcomes };
constexpr size_t kMaxSizes = 4;  // Batch sizes of each study that stands beside others.
struct OutcomeLook {
  const char* name;
  int look;  ///< Its shape differs too: circle, square, diamond, cross.
};
constexpr OutcomeLook kLooks[kNumOutcomes] = {
    {"goal achieved", 0}, {"not achieved", 2}, {"stopped before the budget", 3}, {"infeasible (diverged)", 6}};

Outcome outcome_of(const Trial& trial, const GoalSpec& goal, int64_t budget_steps) {
  if (trial.status == study::TrialStatus::kInfeasible) return kInfeasible;
  const auto steps = study::steps_of_trial(trial, goal);
  if (steps && *steps <= budget_steps) return kReached;
  return trial.steps >= budget_steps ? kNotReached : kStopped;
}

/// Two axes where momentum is searched; else the learning rate against what the trial could reach.
struct Plane {
  bool has_momentum;
  GoalSpec goal;

  std::optional<double> y_of(const Trial& trial, int64_t budget_steps) const {
    if (has_momentum) {
      const auto found = trial.parameters.find("momentum");
      return found == trial.parameters.end() ? std::nullopt : std::optional(1 - found->second);
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
  const std::vector<size_t> kept = study::kept_trials(batch);
  int64_t num_reached = 0, num_infeasible = 0;
  for (size_t i = 0; i < batch.trials.size(); ++i) {
    const Trial& trial = batch.trials[i];
    const bool is_kept = std::find(kept.begin(), kept.end(), i) != kept.end();
    if (!is_kept && trial.status != study::TrialStatus::kInfeasible) continue;
    const auto rate = trial.parameters.find("learning_rate");
    const auto y = plane.y_of(trial, budget_steps);
    if (rate == trial.parameters.end() || !y) continue;
    const Outcome outcome = outcome_of(trial, plane.goal, budget_steps);
    Mark mark{.x = rate->second, .y = *y, .fields = trial_fields(batch, trial)};
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

/// Trials that diverged may be worth 1e30: the axis is that of the others.
std::optional<std::pair<double, double>> y_range(const std::vector<StudyChart>& panels, bool has_momentum) {
  if (has_momentum) return range_of_marks(panels, true);
  std::vector<StudyChart> feasible = panels;
  for (StudyChart& chart : feasible) chart.series[kInfeasible].marks.clear();
  return range_of_marks(feasible, true);
}

void share_axes(std::vector<StudyChart>& panels, bool has_momentum) {
  const auto x = range_of_marks(panels, false), y = y_range(panels, has_momentum);
  for (StudyChart& chart : panels) {
    chart.x.range = x;
    chart.y.range = y;
  }
}

struct Budget {
  study::StepsToResult middle;  ///< Of the batch sizes that reached the goal.
  double steps;                 ///< What it needs twice, rounded up.
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

/// At most kMaxSizes, the first and the last among them.
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

}  // namespace

std::vector<Figure> figures_scatter(const StudyData& study, const study::Analysis& analysis, const StudyBudgets& asked) {
  const std::optional<Budget> budget = budget_of(analysis);
  if (!budget) return {};
  const study::StepsToResult& middle = budget->middle;
  const double budget_steps = asked.steps.empty() ? budget->steps : static_cast<double>(asked.steps.front());
  const double budget_samples = budget->steps * static_cast<double>(middle.batch_size);
  double epochs = study.num_train_samples > 0 ? round_digits(budget_samples / static_cast<double>(study.num_train_samples), 2, true) : 0;
  if (epochs > 0 && !asked.epochs.empty()) epochs = asked.epochs.front();
  const Plane plane{is_searched(study, "momentum"), analysis.goal};
  const std::string what = plane.has_momentum ? "learning rate and momentum" : "learning rate";
  Figure by_steps{.id = "fig9_scatter_steps",
                  .heading = "Trials within a budget of steps",
                  .intro = "The " + what + " of every trial, and whether it reached " + analysis.goal.text() + " within " +
                           plain_number(budget_steps) + " steps" +
                           (asked.steps.empty() ? ": as many as batch size " + count_text(middle.batch_size) + " needs twice." : "."),
                  .shares_legend = true};
  Figure by_epochs{.id = "fig10_scatter_epochs",
                   .heading = "Trials within a budget of epochs",
                   .intro = "The same trials within " + coordinate(epochs, 6) + " epochs: every batch size sees as many samples.",
                   .shares_legend = true};
  for (const BatchStudy& batch : study.batches) {
    if (batch.trials.empty()) continue;
    by_steps.panels.push_back(panel(batch, plane, "fig9", static_cast<int64_t>(budget_steps)));
    if (epochs <= 0) continue;
    const double steps = epochs * static_cast<double>(study.num_train_samples) / static_cast<double>(batch.batch_size);
    by_epochs.panels.push_back(panel(batch, plane, "fig10", std::max<int64_t>(1, static_cast<int64_t>(steps))));
  }
  std::vector<Figure> figures;
  for (Figure* figure : {&by_steps, &by_epochs}) {
    if (figure->panels.empty()) continue;
    share_axes(figure->panels, plane.has_momentum);
    figures.push_back(std::move(*figure));
  }
  return figures;
}

Figure figure_scatter_studies(const std::vector<AnalysedStudy>& studies) {
  Figure figure{.id = "fig10_scatter_studies",
                .heading = "Trials of several studies",
                .intro =
                    "The trials of each study at a few batch sizes, those that all have where there are any: which metaparameters reach "
                    "its goal within twice the steps that its middle batch size needs?",
                .shares_legend = true};
  if (studies.size() < 2) return figure;
  const bool has_momentum =
      std::all_of(studies.begin(), studies.end(), [](const AnalysedStudy& one) { return is_searched(*one.study, "momentum"); });
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
  if (!has_momentum && !is_one_metric) {  // Best values of several metrics have no axis in common.
    for (StudyChart& chart : figure.panels) chart.y.range.reset();
  }
  return figure;
}

}  // namespace cohort::report
