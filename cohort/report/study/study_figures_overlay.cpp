// Figures 3 to 6: studies that differ in one thing laid over each other, raw and normalised to one batch size.

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/report/draw/format.h"
#include "cohort/report/study/study_figures.h"
#include "cohort/study/analysis/steps_to_result.h"

namespace cohort::report {
namespace {

using study::StepsToResult;

enum Thing { kModel, kOptimizer, kDataset, kSamples, kSeed, kAll, kNumThings };
struct Kind {
  Thing thing;
  const char *id, *heading, *intro;
};
constexpr Kind kKinds[] = {
    {kModel, "fig3_models", "Models", "One data set and optimizer, several models."},
    {kOptimizer, "fig4_optimizers", "Optimizers",
     "One data set and model, several optimizers. Where momentum helps, it does so by following the dashed line further."},
    {kDataset, "fig5_datasets", "Data sets", "One model and optimizer on several data sets, each with its own goal."},
    {kSamples, "fig6_data_sizes", "Data sizes", "One workload trained on more and on fewer samples, or on a part of the classes."},
    {kSeed, "fig1_repeats", "Repeated studies",
     "The same workload studied again with other points, weights and data order: what differs here is chance."},
};

/// How the name of a data set ends that is a part of another: with its number of samples (mnist_6875), or as the paper's halves do. ""
/// where it is none.
std::string subset_suffix(const StudyData& study) {
  for (const std::string& suffix : {concat('_', study.num_train_samples), std::string("_half_images"), std::string("_half_classes")})
    if (study.dataset.size() > suffix.size() && study.dataset.ends_with(suffix)) return suffix;
  return "";
}

std::string whole_data_set(const StudyData& study) { return study.dataset.substr(0, study.dataset.size() - subset_suffix(study).size()); }

std::string samples_text(const StudyData& study) {
  if (study.num_train_samples > 0) return count_text(study.num_train_samples) + " samples";
  std::string half = subset_suffix(study);
  std::replace(half.begin(), half.end(), '_', ' ');
  return trim(half);
}

std::array<std::string, kNumThings> things_of(const NamedStudy& named) {
  const StudyData& study = *named.study;
  return {study.model,         study.optimizer, study.dataset,
          samples_text(study), named.name,      study.dataset + ", " + study.model + ", " + study.optimizer};
}

/// Studies of several data sets have no goal in common.
bool has_own_goals(Thing thing) { return thing == kDataset || thing == kAll; }

/// Studies alike in everything but `thing`. A data set brings its own number of samples with it, and repeats may differ in nothing.
std::vector<std::vector<NamedStudy>> groups_by(const std::vector<NamedStudy>& studies, Thing thing) {
  std::map<std::array<std::string, kNumThings>, std::vector<NamedStudy>> groups;
  for (const NamedStudy& named : studies) {
    auto key = things_of(named);
    key[thing].clear();
    key[kSeed].clear();
    key[kAll].clear();
    if (thing == kDataset) key[kSamples].clear();
    if (thing == kSamples) key[kDataset] = whole_data_set(*named.study);
    groups[key].push_back(named);
  }
  std::vector<std::vector<NamedStudy>> out;
  for (auto& [key, members] : groups) {
    std::set<std::string> values;
    for (const NamedStudy& named : members) values.insert(things_of(named)[thing]);
    const bool differs = thing == kSeed ? members.size() > 1 : values.size() > 1;
    if (differs) out.push_back(members);
  }
  return out;
}

struct StudyCurve {
  const StudyData* study;
  std::string name;
  GoalSpec goal;
  PlotSeries series;
};

/// The first goal of the first study that every study has; where there is none, its first one.
GoalSpec goal_in_common(const std::vector<NamedStudy>& group) {
  const std::vector<GoalSpec>& goals = group.front().study->goals;
  for (const GoalSpec& goal : goals) {
    const bool is_common = std::all_of(group.begin(), group.end(), [&](const NamedStudy& named) {
      const std::vector<GoalSpec>& its = named.study->goals;
      return std::any_of(its.begin(), its.end(), [&](const GoalSpec& other) { return other.text() == goal.text(); });
    });
    if (is_common) return goal;
  }
  return goals.front();
}

/// The goal of a group: what was asked for (where it is measured), else one for all (so that they answer the same question), but for data
/// sets, which have each their own.
std::optional<GoalSpec> goal_for(const StudyData& study, const std::vector<NamedStudy>& group, Thing thing,
                                 const std::optional<GoalSpec>& asked) {
  if (asked && study::may_answer(study, *asked)) return asked;
  const StudyData& owner = has_own_goals(thing) ? study : *group.front().study;
  if (owner.goals.empty()) return automatic_goal(owner);
  return has_own_goals(thing) ? owner.goals.front() : goal_in_common(group);
}

std::vector<StudyCurve> curves_of(const std::vector<NamedStudy>& group, Thing thing, const std::optional<GoalSpec>& asked) {
  std::vector<StudyCurve> curves;
  std::map<std::string, int> num_named;
  for (const NamedStudy& named : group) ++num_named[things_of(named)[thing]];
  for (const NamedStudy& named : group) {
    const auto goal = goal_for(*named.study, group, thing, asked);
    if (!goal) continue;
    StudyCurve curve{.study = named.study, .name = things_of(named)[thing], .goal = *goal};
    if (num_named[curve.name] > 1 && thing != kSeed) curve.name += " (" + named.name + ")";
    if (thing == kSeed) curve.name += ", seed " + std::to_string(named.study->seed);
    if (has_own_goals(thing)) curve.name += ", " + goal->text();
    curve.series.kind = PlotSeries::Kind::kJoined;
    for (const StepsToResult& result : study::steps_to_result(*named.study, *goal)) {
      auto mark = result_mark(*named.study, result, *goal);
      if (!mark) continue;
      mark->fields.insert(mark->fields.begin(), text_field("study", curve.name));
      curve.series.marks.push_back(std::move(*mark));
    }
    if (curve.series.marks.empty()) continue;
    curve.series.look = static_cast<int>(curves.size());
    curve.series.name = curve.name;
    curves.push_back(std::move(curve));
  }
  return curves;
}

bool all_have_point(const std::vector<StudyCurve>& curves, double batch) {
  return std::all_of(curves.begin(), curves.end(), [&](const StudyCurve& curve) {
    return std::any_of(curve.series.marks.begin(), curve.series.marks.end(), [&](const Mark& mark) { return mark.x == batch; });
  });
}

/// The one that was asked for, else the smallest batch size, at which every curve has a point.
std::optional<double> common_batch(const std::vector<StudyCurve>& curves, double asked) {
  if (asked > 0 && all_have_point(curves, asked)) return asked;
  for (const Mark& mark : curves.front().series.marks)
    if (all_have_point(curves, mark.x)) return mark.x;
  return std::nullopt;
}

StudyChart raw_panel(const std::vector<StudyCurve>& curves, const std::string& id, const std::string& title) {
  StudyChart chart;
  chart.id = id;
  chart.title = title;
  chart.description = plural(static_cast<int64_t>(curves.size()), "curve") + " of steps against batch size.";
  chart.x = batch_axis();
  chart.y = steps_axis();
  for (const StudyCurve& curve : curves) chart.series.push_back(curve.series);
  return chart;
}

StudyChart normalised_panel(const std::vector<StudyCurve>& curves, double batch, const std::string& id) {
  StudyChart chart = raw_panel(curves, id, "Relative to batch size " + plain_number(batch));
  chart.y.label = "steps, as a share of those at batch size " + plain_number(batch);
  for (PlotSeries& series : chart.series) {
    double unit = 1;
    for (const Mark& mark : series.marks) {
      if (mark.x == batch) unit = mark.y;
    }
    for (Mark& mark : series.marks) {
      mark.y /= unit;
      if (mark.bar) mark.bar = std::pair(mark.bar->first / unit, mark.bar->second / unit);
      mark.fields.push_back(number_field("relative steps", mark.y));
    }
  }
  const auto range = range_of_marks({chart}, false);
  PlotSeries ideal{.name = "ideal", .look = PlotSeries::kGrey, .kind = PlotSeries::Kind::kDashed};
  for (double x = range->first; x <= range->second * 1.001; x *= 1.1892071150027210667) ideal.marks.push_back({.x = x, .y = batch / x});
  chart.series.push_back(ideal);
  return chart;
}

/// "mnist, base: val_error<0.1": what the members of a group share.
std::string title_of(const std::vector<NamedStudy>& group, const std::vector<StudyCurve>& curves, Thing thing) {
  if (thing == kAll) return "Steps to each study's goal";
  auto shared = things_of(group.front());
  if (thing == kSamples) shared[kDataset] = whole_data_set(*group.front().study);
  std::vector<std::string> parts;
  for (const Thing other : {kDataset, kModel, kOptimizer}) {
    if (other != thing && !shared[other].empty()) parts.push_back(shared[other]);
  }
  return join(parts, ", ") + (thing == kDataset ? "" : ": " + curves.front().goal.text());
}

/// Adds the studies that it draws to `shown`.
void add_panels(Figure& figure, const std::vector<NamedStudy>& group, const Kind& kind, const std::optional<GoalSpec>& asked,
                double reference_batch, std::set<const StudyData*>& shown) {
  const std::vector<StudyCurve> curves = curves_of(group, kind.thing, asked);
  if (curves.size() < 2) return;
  for (const StudyCurve& curve : curves) shown.insert(curve.study);
  const std::string id = figure.id + "-" + std::to_string(figure.panels.size());
  figure.panels.push_back(raw_panel(curves, id, title_of(group, curves, kind.thing)));
  const auto batch = common_batch(curves, reference_batch);
  if (!batch) return;
  figure.panels.push_back(normalised_panel(curves, *batch, id + "-relative"));
  if (reference_batch > 0 && *batch != reference_batch)
    figure.panels.back().note = "Not every curve has a point at batch size " + plain_number(reference_batch) + ".";
}

}  // namespace

std::vector<Figure> figures_of_studies(const std::vector<NamedStudy>& studies, const std::optional<GoalSpec>& goal,
                                       double reference_batch) {
  std::vector<Figure> figures;
  if (studies.size() < 2) return figures;
  std::set<const StudyData*> shown;
  for (const Kind& kind : kKinds) {
    Figure figure{.id = kind.id, .heading = kind.heading, .intro = kind.intro};
    for (const auto& group : groups_by(studies, kind.thing)) add_panels(figure, group, kind, goal, reference_batch, shown);
    if (!figure.panels.empty()) figures.push_back(std::move(figure));
  }
  // One that differs from every other in several things is in no group: it is to be seen beside them all.
  const bool shows_all = std::all_of(studies.begin(), studies.end(), [&](const NamedStudy& named) { return shown.contains(named.study); });
  if (shows_all) return figures;
  Figure all{.id = "fig3_studies",
             .heading = "Studies laid over each other",
             .intro = "All studies; some differ from every other in more than one thing. Each has its own goal."};
  add_panels(all, studies, {kAll, "", "", ""}, goal, reference_batch, shown);
  if (!all.panels.empty()) figures.push_back(std::move(all));
  return figures;
}

}  // namespace cohort::report
