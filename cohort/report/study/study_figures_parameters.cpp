// Figure 7 (label smoothing) and figure 8 (the best metaparameters against batch size).

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "cohort/report/draw/format.h"
#include "cohort/report/study/study_figures.h"

namespace cohort::report {
namespace {

constexpr char kSmoothing[] = "label_smoothing";
constexpr size_t kMaxSmoothings = 6;  // More values than that are a range, not a choice.

PlotAxis batch_axis() { return {"batch size (samples)", PlotAxis::Scale::kLog2, std::nullopt}; }

/// The study with only those of its counting trials that have this value.
StudyData with_value(const StudyData& study, const std::string& name, double value) {
  StudyData out;
  out.num_train_samples = study.num_train_samples;
  for (const BatchStudy& batch : study.batches) {
    BatchStudy part{.batch_size = batch.batch_size, .train_steps = batch.train_steps, .early_stopping = batch.early_stopping};
    for (const size_t index : study::kept_trials(batch)) {
      const Trial& trial = batch.trials[index];
      const auto found = trial.parameters.find(name);
      if (found != trial.parameters.end() && found->second == value) part.trials.push_back(trial);
    }
    part.num_trials = static_cast<int64_t>(part.trials.size());
    out.batches.push_back(std::move(part));
  }
  return out;
}

std::vector<double> values_of(const StudyData& study, const std::string& name) {
  std::set<double> values;
  for (const BatchStudy& batch : study.batches) {
    for (const size_t index : study::kept_trials(batch)) {
      const auto found = batch.trials[index].parameters.find(name);
      if (found != batch.trials[index].parameters.end()) values.insert(found->second);
    }
  }
  return {values.begin(), values.end()};
}

/// Over all steps that were trained, whatever the budget was.
PlotSeries best_series(const StudyData& study, study::Metric metric) {
  PlotSeries series;
  for (const BatchStudy& batch : study.batches) {
    const Trial* best_trial = nullptr;
    study::Measurement best;
    for (const size_t index : study::kept_trials(batch)) {
      const auto found = best_measurement(batch.trials[index], metric, std::numeric_limits<int64_t>::max());
      if (!found) continue;
      const double value = found->values[metric], so_far = best.values[metric];
      if (best_trial != nullptr && !(study::higher_is_better(metric) ? value > so_far : value < so_far)) continue;
      best_trial = &batch.trials[index];
      best = *found;
    }
    if (best_trial == nullptr) continue;
    Mark mark{.x = static_cast<double>(batch.batch_size), .y = best.values[metric], .fields = trial_fields(batch, *best_trial)};
    mark.fields.push_back(number_field(study::name_of(metric), mark.y));
    mark.fields.push_back(number_field("at step", static_cast<double>(best.step)));
    series.marks.push_back(std::move(mark));
  }
  return series;
}

/// A parameter of the best trials, or a number made from their parameters.
struct Quantity {
  std::string name, id;
  double (*of)(const study::Parameters&);
  bool has_rules;  ///< Linear and square-root scaling are said of it.
};

double parameter(const study::Parameters& parameters, const char* name) {
  const auto found = parameters.find(name);
  return found == parameters.end() ? std::nan("") : found->second;
}
double learning_rate(const study::Parameters& parameters) { return parameter(parameters, "learning_rate"); }
double one_minus_momentum(const study::Parameters& parameters) { return 1 - parameter(parameters, "momentum"); }
double effective_rate(const study::Parameters& parameters) { return learning_rate(parameters) / one_minus_momentum(parameters); }

void add_rules(StudyChart& chart) {
  const std::vector<Mark> marks = chart.series.front().marks;
  if (marks.size() < 2) return;
  const Mark& first = marks.front();
  const auto rule = [&](const char* name, int look, double power) {
    PlotSeries series{.name = name, .look = look, .kind = PlotSeries::Kind::kDashed};
    for (int i = 0; i <= 40; ++i) {
      const double factor = std::pow(marks.back().x / first.x, i / 40.0);
      series.marks.push_back({.x = first.x * factor, .y = first.y * std::pow(factor, power)});
    }
    chart.series.push_back(std::move(series));
  };
  rule("linear rule", 1, 1);
  rule("square-root rule", 2, 0.5);
}

/// Where the search could have found it: the smallest and the largest value among the trials that were drawn.
void add_searched_range(StudyChart& chart, const StudyData& study, const Quantity& quantity) {
  PlotSeries low{.name = "range of all trials", .look = PlotSeries::kGrey, .kind = PlotSeries::Kind::kCurve};
  PlotSeries high = low;
  high.in_legend = false;
  for (const BatchStudy& batch : study.batches) {
    double least = std::numeric_limits<double>::infinity(), most = -least;
    for (const Trial& trial : batch.trials) {
      const double value = quantity.of(trial.parameters);
      if (!std::isfinite(value)) continue;
      least = std::min(least, value);
      most = std::max(most, value);
    }
    if (least > most) continue;
    low.marks.push_back({.x = static_cast<double>(batch.batch_size), .y = least});
    high.marks.push_back({.x = static_cast<double>(batch.batch_size), .y = most});
  }
  std::optional<std::pair<double, double>>& range = chart.y.range;
  range = range_of_marks({chart}, true);
  for (const PlotSeries* series : {&low, &high}) {
    for (const Mark& mark : series->marks) {
      if (range && mark.y > 0) range = std::pair(std::min(range->first, mark.y), std::max(range->second, mark.y));
    }
  }
  chart.series.push_back(std::move(low));
  chart.series.push_back(std::move(high));
}

}  // namespace

Figure figure_label_smoothing(const StudyData& study, const GoalSpec& goal) {
  Figure figure{.id = "fig7_label_smoothing",
                .heading = "Label smoothing",
                .intro = "Trials split by the label smoothing that they drew: what the best of each could reach, and how soon.",
                .shares_legend = true};
  const std::vector<double> values = values_of(study, kSmoothing);
  if (values.size() < 2 || values.size() > kMaxSmoothings) return figure;
  StudyChart best{.id = "fig7-best", .title = std::string("Best ") + study::name_of(goal.metric), .x = batch_axis()};
  best.y.label = study::name_of(goal.metric);
  StudyChart steps{.id = "fig7-steps", .title = "Steps to " + goal.text(), .x = batch_axis()};
  steps.y = {"training steps", PlotAxis::Scale::kLog2, std::nullopt};
  for (size_t i = 0; i < values.size(); ++i) {
    const StudyData part = with_value(study, kSmoothing, values[i]);
    PlotSeries series = best_series(part, goal.metric);
    series.name = "smoothing " + significant(values[i], 3);
    series.look = static_cast<int>(i);
    series.kind = PlotSeries::Kind::kJoined;
    PlotSeries reached = series;
    reached.marks.clear();
    for (const study::StepsToResult& result : study::steps_to_result(part, goal)) {
      if (auto mark = result_mark(part, result, goal)) reached.marks.push_back(std::move(*mark));
    }
    best.series.push_back(std::move(series));
    steps.series.push_back(std::move(reached));
  }
  best.description = "Best value over all steps, one line a label smoothing.";
  steps.description = "Steps to the goal, one line a label smoothing.";
  best.has_legend = steps.has_legend = false;
  if (!study.batches.empty() &&
      std::any_of(study.batches.begin(), study.batches.end(), [](const BatchStudy& b) { return b.early_stopping; }))
    best.note = "Some trials were stopped before their budget: the best value of a smoothing that was slower is an upper bound.";
  figure.panels = {best, steps};
  return figure;
}

Figure figure_parameters(const StudyData& study, const study::Analysis& analysis) {
  Figure figure{.id = "fig8_parameters",
                .heading = "Best metaparameters",
                .intro =
                    "What the trial that reached the goal first had drawn. The rules by which learning rates are often scaled start at the "
                    "smallest batch size."};
  std::vector<Quantity> quantities = {{"learning rate", "learning-rate", learning_rate, true}};
  if (is_searched(study, "momentum")) {
    quantities.push_back({"1 - momentum", "momentum", one_minus_momentum, false});
    quantities.push_back({"learning rate / (1 - momentum)", "effective", effective_rate, true});
  }
  for (const Quantity& quantity : quantities) {
    StudyChart chart{.id = "fig8-" + quantity.id, .title = "Best " + quantity.name, .x = batch_axis()};
    chart.y = {quantity.name, PlotAxis::Scale::kLog10, std::nullopt};
    chart.description = "The best trial's " + quantity.name + " at each batch size.";
    PlotSeries series{.name = "best trial"};
    for (const study::StepsToResult& result : analysis.steps) {
      const BatchStudy* batch = find_batch(study, result.batch_size);
      const Trial* trial = batch == nullptr || !result.steps ? nullptr : find_trial(*batch, result.trial_id);
      if (trial == nullptr) continue;
      Mark mark{.x = static_cast<double>(result.batch_size), .y = quantity.of(trial->parameters)};
      if (!std::isfinite(mark.y) || mark.y <= 0) continue;
      mark.fields = result_fields(*batch, result, analysis.goal);
      mark.fields.push_back(number_field(quantity.name, mark.y));
      series.marks.push_back(std::move(mark));
    }
    if (series.marks.empty()) continue;
    chart.series.push_back(std::move(series));
    if (quantity.has_rules) add_rules(chart);
    add_searched_range(chart, study, quantity);
    figure.panels.push_back(std::move(chart));
  }
  return figure;
}

}  // namespace cohort::report
