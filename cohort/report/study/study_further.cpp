#include "cohort/report/study/study_further.h"

#include <algorithm>
#include <cctype>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/report/draw/format.h"
#include "cohort/report/study/study_summary.h"
#include "cohort/study/analysis/steps_to_result.h"

namespace cohort::report {
namespace {

constexpr size_t kMaxNameBytes = 80;  // Of a file's 255, which other parts share.

/// The goal that is asked of a study, and whether it had to be chosen.
std::optional<GoalSpec> goal_of(const StudyData& study, const std::optional<GoalSpec>& asked, bool is_first) {
  if (asked && (is_first || study::may_answer(study, *asked))) return asked;
  if (!study.goals.empty() && (is_first || study::may_answer(study, study.goals.front()))) return study.goals.front();
  return std::nullopt;
}

}  // namespace

std::string label_of(const ReportedStudy& study) {
  if (study.name == join({study.data.dataset, study.data.model, study.data.optimizer}, "/")) return study.name;
  const size_t end = study.name.find_last_not_of('/');
  if (end == std::string::npos) return study.name;
  const size_t slash = study.name.find_last_of('/', end);
  const size_t begin = slash == std::string::npos ? 0 : slash + 1;
  return study.name.substr(begin, end + 1 - begin);
}

std::string suffix_of(const ReportedStudy& study, size_t number) {
  std::string name = label_of(study).substr(0, kMaxNameBytes);
  for (char& character : name) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte >= 128 || (std::isalnum(byte) == 0 && character != '.' && character != '-')) character = '_';
  }
  return concat('-', number, '-', name);
}

StudyReport analyse_reported(const ReportedStudy& study, const std::optional<GoalSpec>& asked, const StudyReportOptions& options) {
  const StudyData& data = study.data;
  StudyReport report{.name = study.name};
  const bool is_first = &study == &options.studies.front();
  std::optional<GoalSpec> goal = goal_of(data, asked, is_first);
  const bool is_automatic = !goal;
  if (!goal) goal = automatic_goal(data);
  report.has_goal = goal.has_value() && !data.batches.empty();
  if (report.has_goal) {
    report.analysis = study::analyse(data, *goal, {.reference_batch = options.reference_batch, .num_resamples = options.num_resamples});
    report.flags = study::self_checks(data, *goal, report.analysis.steps);
  }
  report.sentences = summary_sentences(data, report, is_automatic);
  return report;
}

std::vector<Figure> own_figures(const StudyData& study, const StudyReport& report, const StudyReportOptions& options) {
  if (!report.has_goal) return {};
  const GoalSpec& goal = report.analysis.goal;
  std::vector<Figure> figures = {figure_steps(study, report.analysis), figure_goals(study, goal, options.goals),
                                 figure_label_smoothing(study, goal), figure_parameters(study, report.analysis)};
  for (Figure& figure : figures_scatter(study, report.analysis, options.budgets)) figures.push_back(std::move(figure));
  figures.push_back(figure_budgets(study, goal, options.budgets));
  std::erase_if(figures, [](const Figure& figure) { return figure.panels.empty(); });
  return figures;
}

std::vector<Figure> further_figures(const ReportedStudy& study, const StudyReport& report, size_t number,
                                    const StudyReportOptions& options) {
  std::vector<Figure> figures = own_figures(study.data, report, options);
  for (Figure& figure : figures) {
    figure.id += suffix_of(study, number);
    figure.heading += ": " + label_of(study);
    for (StudyChart& chart : figure.panels) chart.id += concat("-of-", number);
  }
  return figures;
}

std::vector<std::string> warnings_of_several(const StudyReportOptions& options, const StudyReport& report) {
  std::vector<std::string> warnings;
  for (const ReportedStudy& study : options.studies) {
    if (!options.goal || study::may_answer(study.data, *options.goal)) continue;
    warnings.push_back(concat(study.name, " does not measure ", study::name_of(options.goal->metric), ": the goal ", options.goal->text(),
                              " is not asked of it, but its own"));
  }
  if (const size_t num_own = report.others.size() + 1; options.studies.size() > num_own)
    warnings.push_back(concat("of ", options.studies.size(), " studies the first ", num_own,
                              " have figures of their own; name others first to see theirs"));
  return warnings;
}

}  // namespace cohort::report
