// Figures 3 to 6: overlaid curves of studies that differ in one property, raw and relative to one batch size.

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

enum Property { kModel, kOptimizer, kDataset, kSamples, kSeed, kAll, kNumProperties };
struct Kind {
  Property property;
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

/// The suffix of a data set's name that marks a subset: its number of samples (mnist_6875), or that of the paper's halves; "" for others.
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

std::array<std::string, kNumProperties> properties_of(const NamedStudy& named) {
  const StudyData& study = *named.study;
  return {study.model,         study.optimizer, study.dataset,
          samples_text(study), named.name,      study.dataset + ", " + study.model + ", " + study.optimizer};
}

/// Studies of several data sets have no common goal.
bool has_own_goals(Property property) { return property == kDataset || property == kAll; }

/// Studies equal in everything but `property`. A data set determines its number of samples, and repeated studies may be equal in
/// everything.
std::vector<std::vector<NamedStudy>> groups_by(const std::vector<NamedStudy>& studies, Property property) {
  std::map<std::array<std::string, kNumProperties>, std::vector<NamedStudy>> groups;
  for (const NamedStudy& named : studies) {
    auto key = properties_of(named);
    key[property].clear();
    key[kSeed].clear();
    key[kAll].clear();
    if (property == kDataset) key[kSamples].clear();
    if (property == kSamples) key[kDataset] = whole_data_set(*named.study);
    groups[key].push_back(named);
  }
  std::vector<std::vector<NamedStudy>> out;
  for (auto& [key, members] : groups) {
    std::set<std::string> values;
    for (const NamedStudy& named : members) values.insert(properties_of(named)[property]);
    const bool differs = property == kSeed ? members.size() > 1 : values.size() > 1;
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

/// The goal of a study in a group: the requested one where it is measured, else one for the whole group, but each study's own for data
/// sets.
std::optional<GoalSpec> goal_for(const StudyData& study, const std::vector<NamedStudy>& group, Property property,
                                 const std::optional<GoalSpec>& requested) {
  if (requested && study::can_answer(study, *requested)) return requested;
  const StudyData& owner = has_own_goals(property) ? study : *group.front().study;
  if (owner.goals.empty()) return automatic_goal(owner);
  return has_own_goals(property) ? owner.goals.front() : goal_in_common(group);
}

std::vector<StudyCurve> curves_of(const std::vector<NamedStudy>& group, Property property, const std::optional<GoalSpec>& requested) {
  std::vector<StudyCurve> curves;
  std::map<std::string, int> num_named;
  for (const NamedStudy& named : group) ++num_named[properties_of(named)[property]];
  for (const NamedStudy& named : group) {
    const auto goal = goal_for(*named.study, group, property, requested);
    if (!goal) continue;
    StudyCurve curve{.study = named.study, .name = properties_of(named)[property], .goal = *goal};
    if (num_named[curve.name] > 1 && property != kSeed) curve.name += " (" + named.name + ")";
    if (property == kSeed) curve.name += ", seed " + std::to_string(named.study->seed);
    if (has_own_goals(property)) curve.name += ", " + goal->text();
    curve.series = result_series(*named.study, study::steps_to_result(*named.study, *goal), *goal);
    if (curve.series.marks.empty()) continue;
    for (Mark& mark : curve.series.marks) mark.fields.insert(mark.fields.begin(), text_field("study", curve.name));
    curve.series.kind = PlotSeries::Kind::kJoined;
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

/// The requested batch size, else the smallest one, at which every curve has a point.
std::optional<double> common_batch(const std::vector<StudyCurve>& curves, double requested) {
  if (requested > 0 && all_have_point(curves, requested)) return requested;
  for (const Mark& mark : curves.front().series.marks)
    if (all_have_point(curves, mark.x)) return mark.x;
  return std::nullopt;
}

StudyChart raw_panel(const std::vector<StudyCurve>& curves, const std::string& id, const std::string& title) {
  StudyChart chart{.id = id,
                   .title = title,
                   .description = plural(static_cast<int64_t>(curves.size()), "curve") + " of steps against batch size.",
                   .x = batch_axis(),
                   .y = steps_axis()};
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
  chart.series.push_back(sampled_curve("ideal", PlotSeries::kGrey, PlotSeries::Kind::kDashed, range->first, range->second,
                                       [&](double x) { return batch / x; }));
  return chart;
}

/// The shared properties of a group: "mnist, base: val_error<0.1".
std::string title_of(const std::vector<NamedStudy>& group, const std::vector<StudyCurve>& curves, Property property) {
  if (property == kAll) return "Steps to each study's goal";
  auto shared = properties_of(group.front());
  if (property == kSamples) shared[kDataset] = whole_data_set(*group.front().study);
  std::vector<std::string> parts;
  for (const Property other : {kDataset, kModel, kOptimizer}) {
    if (other != property && !shared[other].empty()) parts.push_back(shared[other]);
  }
  return join(parts, ", ") + (property == kDataset ? "" : ": " + curves.front().goal.text());
}

/// Adds the panels of a group, and its studies to `shown`.
void add_panels(Figure& figure, const std::vector<NamedStudy>& group, const Kind& kind, const std::optional<GoalSpec>& requested,
                double reference_batch, std::set<const StudyData*>& shown) {
  const std::vector<StudyCurve> curves = curves_of(group, kind.property, requested);
  if (curves.size() < 2) return;
  for (const StudyCurve& curve : curves) shown.insert(curve.study);
  const std::string id = figure.id + "-" + std::to_string(figure.panels.size());
  figure.panels.push_back(raw_panel(curves, id, title_of(group, curves, kind.property)));
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
    for (const auto& group : groups_by(studies, kind.property)) add_panels(figure, group, kind, goal, reference_batch, shown);
    if (!figure.panels.empty()) figures.push_back(std::move(figure));
  }
  // A study that differs from every other in several properties is in no group; then all are overlaid.
  const bool shows_all = std::all_of(studies.begin(), studies.end(), [&](const NamedStudy& named) { return shown.contains(named.study); });
  if (shows_all) return figures;
  Figure all{.id = "fig3_studies",
             .heading = "Studies laid over each other",
             .intro = "All studies; some differ from every other in more than one property. Each has its own goal."};
  add_panels(all, studies, {kAll, "", "", ""}, goal, reference_batch, shown);
  if (!all.panels.empty()) figures.push_back(std::move(all));
  return figures;
}

}  // namespace cohort::report
