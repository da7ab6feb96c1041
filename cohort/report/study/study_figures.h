#pragma once
// The figures of a batch-size study, numbered as in Shallue et al. (2019). Each is computed from raw data (StudyData) alone, so that a
// store and an archive give the same figures. A figure without data has no panels.

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/report/draw/chart.h"
#include "cohort/study/analysis/fits.h"
#include "cohort/study/analysis/steps_to_result.h"
#include "cohort/study/analysis/worth.h"
#include "cohort/study/spec/data.h"

namespace cohort::report {

using study::BatchStudy;
using study::GoalSpec;
using study::StudyData;
using study::Trial;

/// The budgets of figures 9 to 11. An empty list is chosen from the data.
struct StudyBudgets {
  std::vector<int64_t> steps;
  std::vector<double> epochs;  ///< Passes over the training data.
};

struct Figure {
  std::string id;  ///< Id of the section and name of the CSV: "fig1_steps".
  std::string heading, intro;
  std::vector<StudyChart> panels;
  bool shares_legend = false;  ///< The legend of the first panel is shown above all panels.
};

// --- Shared by the figures (study_goals.cpp).

inline PlotAxis batch_axis() { return {"batch size (samples)", PlotAxis::Scale::kLog2, std::nullopt}; }
inline PlotAxis steps_axis() { return {"training steps", PlotAxis::Scale::kLog2, std::nullopt}; }
/// Fields of a trial: batch size, id, parameters, status and trained steps.
std::vector<Field> trial_fields(const study::BatchStudy& batch, const study::Trial& trial);
/// Fields of a result: steps to the goal, their interval, and those of the trial.
std::vector<Field> result_fields(const study::BatchStudy& batch, const study::StepsToResult& result, const study::GoalSpec& goal);
/// The result as a point at (batch size, steps), hollow where censored trials may hide a smaller one; none where no trial reached the goal.
std::optional<Mark> result_mark(const study::StudyData& study, const study::StepsToResult& result, const study::GoalSpec& goal);
/// The distinct values of a parameter over the trials that count.
std::vector<double> searched_values(const study::StudyData& study, const std::string& parameter);
/// The points of all results that have steps.
PlotSeries result_series(const study::StudyData& study, const std::vector<study::StepsToResult>& results, const study::GoalSpec& goal);
constexpr int kCurvePoints = 48;
/// A line without marks through y(x) at points of equal ratio from `low` to `high`.
template <typename Function>
PlotSeries sampled_curve(const std::string& name, int look, PlotSeries::Kind kind, double low, double high, const Function& y) {
  PlotSeries series{.name = name, .look = look, .kind = kind};
  for (int i = 0; i < kCurvePoints; ++i) {
    const double x = low * std::pow(high / low, static_cast<double>(i) / (kCurvePoints - 1));
    series.marks.push_back({.x = x, .y = y(x)});
  }
  return series;
}
/// The best value of a metric of a trial at or before a step; none where it was not measured.
std::optional<study::Measurement> best_measurement(const study::Trial& trial, study::Metric metric, int64_t last_step);
/// 1234 -> 1200 or 1300 (2 digits), rounded up (`upwards`) or down.
double round_digits(double value, int digits, bool upwards);

/// A goal for studies without one, such as archives: the hardest one, in two digits, that five trials (or all) of every batch size reach,
/// of validation error, precision or loss. None where nothing is measured.
std::optional<study::GoalSpec> automatic_goal(const study::StudyData& study);
/// The goal, the study's other goals of its metric, and easier and harder ones that at least half of the batch sizes reach; at most six,
/// easiest first. A non-empty `requested` replaces all but the goal.
std::vector<study::GoalSpec> several_goals(const study::StudyData& study, const study::GoalSpec& goal,
                                           const std::vector<study::GoalSpec>& requested = {});

// --- Figures of one study.

struct OneStudy {
  const study::StudyData& study;
  const study::Analysis& analysis;            ///< The analysis at the goal of the report.
  const std::vector<study::GoalSpec>& goals;  ///< Further goals of figure 2; empty: chosen automatically.
  const StudyBudgets& budgets;
};
/// Figures 1, 2, 7, 8, 9, 10 (epochs) and 11, without empty ones. The budgets of 9 and 10 are the first given ones, else twice those that
/// the middle batch size needs.
std::vector<Figure> figures_of_study(const OneStudy& one);
/// The figures within budgets (study_figures_budget.cpp).
void draw_scatter_steps(const OneStudy& one, Figure& figure);
void draw_scatter_epochs(const OneStudy& one, Figure& figure);
void draw_budgets(const OneStudy& one, Figure& figure);

Figure figure_worth(const study::Worth& worth, const study::GoalSpec& goal);  ///< Time to the goal.

// --- Figures of several studies.

/// Figures 3 to 6: groups of studies that differ in one property, and studies that differ only in their seed; where a study is in no group,
/// also all studies overlaid. The goal is `goal` where it is given and measured, else that of the group's first study, or each study's own.
/// Curves are relative to `reference_batch` where every curve has a point there; else, with a note, to the smallest common batch size.
struct NamedStudy {
  const study::StudyData* study = nullptr;
  std::string name;  ///< The folder, to distinguish studies of the same workload.
};
std::vector<Figure> figures_of_studies(const std::vector<NamedStudy>& studies, const std::optional<study::GoalSpec>& goal,
                                       double reference_batch = 0);
struct AnalysedStudy {
  const study::StudyData* study = nullptr;
  std::string name;
  const study::Analysis* analysis = nullptr;
};
/// Figure 10 at a few batch sizes of several studies, such as models, each within its own budget of steps. No panels for one study.
Figure figure_scatter_studies(const std::vector<AnalysedStudy>& studies);

}  // namespace cohort::report
