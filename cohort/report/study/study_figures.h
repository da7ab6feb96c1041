#pragma once
// The figures of a batch-size study, numbered as in Shallue et al. (2019). Each is made from raw data (StudyData) alone, so that a store
// and an archive give the same ones. A figure that a study has nothing for has no panels.

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

/// Of figures 9 to 11. An empty list: chosen by what the study has.
struct StudyBudgets {
  std::vector<int64_t> steps;
  std::vector<double> epochs;  ///< Passes over the training data.
};

struct Figure {
  std::string id;  ///< Of the section, and the CSV's name: "fig1_steps".
  std::string heading, intro;
  std::vector<StudyChart> panels;
  bool shares_legend = false;  ///< One legend (that of the first panel) stands above all panels.
};

// --- What figures share (study_goals.cpp).

inline PlotAxis batch_axis() { return {"batch size (samples)", PlotAxis::Scale::kLog2, std::nullopt}; }
inline PlotAxis steps_axis() { return {"training steps", PlotAxis::Scale::kLog2, std::nullopt}; }
/// Batch size, id, parameters, status and trained steps.
std::vector<Field> trial_fields(const study::BatchStudy& batch, const study::Trial& trial);
/// Fields of a result: steps to the goal, its interval, and the trial's.
std::vector<Field> result_fields(const study::BatchStudy& batch, const study::StepsToResult& result, const study::GoalSpec& goal);
/// The result as a point at (batch size, steps); hollow where censored trials may hide a smaller one. Without a point where none reached.
std::optional<Mark> result_mark(const study::StudyData& study, const study::StepsToResult& result, const study::GoalSpec& goal);
/// Whether trials that count differ in it.
bool is_searched(const study::StudyData& study, const std::string& parameter);
/// The best value of a metric that a trial had at or before a step; none where it was not measured.
std::optional<study::Measurement> best_measurement(const study::Trial& trial, study::Metric metric, int64_t last_step);
/// 1234 -> 1200 (2 digits), rounded to where the goal is easier (`upwards`) or harder.
double round_digits(double value, int digits, bool upwards);

/// For a study that has no goal, as an archive: the hardest one that five trials (or all) of every batch size that has trials reach, in two
/// digits; of validation error, precision or loss. None where nothing is measured.
std::optional<study::GoalSpec> automatic_goal(const study::StudyData& study);
/// The goal, the study's other goals of its metric, and easier and harder ones that at least half of the batch sizes reach; at most six,
/// easiest first.
/// `asked`, where it is not empty, are those beside the goal.
std::vector<study::GoalSpec> several_goals(const study::StudyData& study, const study::GoalSpec& goal,
                                           const std::vector<study::GoalSpec>& asked = {});

// --- Figures of one study.

struct OneStudy {
  const study::StudyData& study;
  const study::Analysis& analysis;            ///< Of the goal that is asked of it.
  const std::vector<study::GoalSpec>& goals;  ///< Of figure 2, beside that one; empty: chosen.
  const StudyBudgets& budgets;
};
/// 1, 2, 7, 8, 9, 10 (that of epochs) and 11; those with nothing to show are left out. The budgets of 9 and 10 are the first of each that
/// was named, else those that the batch size in the middle needs twice.
std::vector<Figure> figures_of_study(const OneStudy& one);
/// Three of them (study_figures_budget.cpp).
void draw_scatter_steps(const OneStudy& one, Figure& figure);
void draw_scatter_epochs(const OneStudy& one, Figure& figure);
void draw_budgets(const OneStudy& one, Figure& figure);

Figure figure_worth(const study::Worth& worth, const study::GoalSpec& goal);  ///< Time to the goal.

// --- Figures of several studies.

/// 3 to 6: groups of studies that differ in one thing, and studies that differ in nothing but their seed; where that leaves one out, all
/// studies over each other too. `goal` where one was asked for and is measured; else the group's first study's, or each one's own. Relative
/// to `reference_batch` where every curve has a point there; else (a note says so), and where it is 0, to the smallest that all have.
struct NamedStudy {
  const study::StudyData* study = nullptr;
  std::string name;  ///< For studies whose workloads have the same names: the folder.
};
std::vector<Figure> figures_of_studies(const std::vector<NamedStudy>& studies, const std::optional<study::GoalSpec>& goal,
                                       double reference_batch = 0);
struct AnalysedStudy {
  const study::StudyData* study = nullptr;
  std::string name;
  const study::Analysis* analysis = nullptr;
};
/// 10: the same at a few batch sizes of several studies, such as models, each within its own budget of steps. No panels for one study.
Figure figure_scatter_studies(const std::vector<AnalysedStudy>& studies);

}  // namespace cohort::report
