// The figures of one study: a table of id, heading, text and draw function at the end of the file. Drawn here are 1 and 2 (steps to the
// goal against batch size), 7 (label smoothing), 8 (the best hyperparameters), and the time to the goal; those within budgets are in
// study_figures_budget.cpp.

#include "cohort/report/study/study_figures.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "cohort/report/draw/format.h"

namespace cohort::report {
namespace {

using study::Analysis;
using study::StepsToResult;

constexpr char kHollowNote[] =
    "Hollow: trials were stopped there before they could show whether they reach this goal sooner; fewer steps may be enough.";

bool any_hollow(const StudyChart& chart) {
  return std::any_of(chart.series.begin(), chart.series.end(), [](const PlotSeries& series) {
    return std::any_of(series.marks.begin(), series.marks.end(), [](const Mark& mark) { return mark.hollow; });
  });
}

StudyChart steps_chart(const std::string& id, const std::string& title) {
  return {.id = id, .title = title, .x = batch_axis(), .y = steps_axis(), .size = StudyChart::Size::kWide};
}

std::string missing_note(const std::vector<StepsToResult>& steps) {
  std::string sizes;
  int num_missing = 0;
  for (const StepsToResult& result : steps) {
    if (result.steps || result.num_kept + result.num_infeasible == 0) continue;
    sizes += (sizes.empty() ? "" : ", ") + count_text(result.batch_size);
    ++num_missing;
  }
  if (num_missing == 0) return "";
  return "No trial reached the goal at batch size " + sizes + (num_missing == 1 ? ": it has" : ": they have") + " no point.";
}

void draw_steps(const OneStudy& one, Figure& figure) {
  const auto& [study, analysis, goals, budgets] = one;
  StudyChart chart = steps_chart("fig1", "Steps to " + analysis.goal.text() + " against batch size");
  PlotSeries points = result_series(study, analysis.steps, analysis.goal);
  points.name = "measured, with 95 % interval";
  if (points.marks.empty()) {
    chart.note = "No trial of any batch size reached " + analysis.goal.text() + ".";
    return figure.panels.push_back(chart);
  }
  const double low = points.marks.front().x, high = points.marks.back().x, first_steps = points.marks.front().y;
  chart.description = plural(static_cast<int64_t>(points.marks.size()), "batch size") + " from " + plain_number(low) + " to " +
                      plain_number(high) + "; steps fall from " + plain_number(first_steps) + " to " + plain_number(points.marks.back().y) +
                      ".";
  chart.note = missing_note(analysis.steps);
  chart.series.push_back(std::move(points));
  if (high > low) {
    chart.series.push_back(sampled_curve("ideal: twice the batch, half the steps", PlotSeries::kGrey, PlotSeries::Kind::kDashed, low, high,
                                         [&](double batch) { return first_steps * low / batch; }));
    for (size_t i = 0; i < analysis.fits.size(); ++i) {
      const study::Fit& fit = analysis.fits[i];
      if (fit.law == study::Law::kLogLinear) continue;  // Its curve is that of the hyperbola.
      const auto kind = fit.law == study::Law::kKnee ? PlotSeries::Kind::kDashed : PlotSeries::Kind::kCurve;
      chart.series.push_back(sampled_curve(study::name_of(fit.law), static_cast<int>(i) + 1, kind, low, high,
                                           [&](double batch) { return fit.steps_at(batch); }));
    }
  }
  const study::Regimes& regimes = analysis.regimes;
  if (regimes.perfect_to)
    chart.vertical_lines.push_back({"perfect to " + plain_number(*regimes.perfect_to), *regimes.perfect_to, regimes.perfect_interval});
  if (regimes.flat_from)
    chart.vertical_lines.push_back({"flat from " + plain_number(*regimes.flat_from), *regimes.flat_from, regimes.flat_interval});
  if (any_hollow(chart)) chart.note += (chart.note.empty() ? "" : " ") + std::string(kHollowNote);
  figure.panels.push_back(std::move(chart));
}

void draw_goals(const OneStudy& one_study, Figure& figure) {
  const auto& [study, analysis, requested, budgets] = one_study;
  StudyChart chart = steps_chart("fig2", "Steps against batch size at several goals");
  int look = 0;
  for (const GoalSpec& one : several_goals(study, analysis.goal, requested)) {
    PlotSeries series = result_series(study, study::steps_to_result(study, one), one);
    if (series.marks.empty()) {
      if (!requested.empty()) chart.note += "No trial of any batch size reached " + one.text() + ". ";
      continue;
    }
    series.name = one.text();
    series.look = look++;
    series.kind = PlotSeries::Kind::kJoined;
    for (Mark& mark : series.marks) mark.bar.reset();  // Bars of six curves would overlap; figure 1 has them.
    chart.series.push_back(std::move(series));
  }
  if (chart.series.empty()) return;
  chart.description = plural(static_cast<int64_t>(chart.series.size()), "goal") + ", easiest first.";
  if (any_hollow(chart)) chart.note += kHollowNote;
  figure.panels.push_back(std::move(chart));
}

constexpr char kSmoothing[] = "label_smoothing";
constexpr size_t kMaxSmoothings = 6;  // More values are a range, not a choice.

/// The study with only those trials that count and have this parameter value.
StudyData with_value(const StudyData& study, const std::string& name, double value) {
  StudyData out;
  out.num_train_samples = study.num_train_samples;
  for (const BatchStudy& batch : study.batches) {
    BatchStudy part{.batch_size = batch.batch_size, .train_steps = batch.train_steps, .early_stopping = batch.early_stopping};
    for (const size_t index : study::counted_trials(batch)) {
      if (study::find_parameter(batch.trials[index].parameters, name) == value) part.trials.push_back(batch.trials[index]);
    }
    part.num_trials = static_cast<int64_t>(part.trials.size());
    out.batches.push_back(std::move(part));
  }
  return out;
}

/// The best value at each batch size over all trained steps, whatever the budget.
PlotSeries best_series(const StudyData& study, study::Metric metric) {
  PlotSeries series;
  for (const BatchStudy& batch : study.batches) {
    const Trial* best_trial = nullptr;
    study::Measurement best;
    for (const size_t index : study::counted_trials(batch)) {
      const auto found = best_measurement(batch.trials[index], metric, std::numeric_limits<int64_t>::max());
      if (!found) continue;
      if (best_trial != nullptr && !study::is_better(found->values[metric], best.values[metric], metric)) continue;
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

/// A parameter of the best trials, or a function of their parameters.
struct Quantity {
  std::string name, id;
  double (*of)(const study::Parameters&);
  bool has_rules;  ///< The linear and square-root scaling rules apply to it.
};

double parameter(const study::Parameters& parameters, const char* name) {
  return study::find_parameter(parameters, name).value_or(std::nan(""));
}
double learning_rate(const study::Parameters& parameters) { return parameter(parameters, "learning_rate"); }
double one_minus_momentum(const study::Parameters& parameters) { return 1 - parameter(parameters, "momentum"); }
double effective_rate(const study::Parameters& parameters) { return learning_rate(parameters) / one_minus_momentum(parameters); }

void add_rules(StudyChart& chart) {
  const std::vector<Mark> marks = chart.series.front().marks;
  if (marks.size() < 2) return;
  const Mark& first = marks.front();
  const auto rule = [&](const char* name, int look, double power) {
    chart.series.push_back(sampled_curve(name, look, PlotSeries::Kind::kDashed, first.x, marks.back().x,
                                         [&](double batch) { return first.y * std::pow(batch / first.x, power); }));
  };
  rule("linear rule", 1, 1);
  rule("square-root rule", 2, 0.5);
}

/// Adds the smallest and the largest value among all trials: the range of the search.
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

void draw_label_smoothing(const OneStudy& one, Figure& figure) {
  const StudyData& study = one.study;
  const GoalSpec& goal = one.analysis.goal;
  const std::vector<double> values = searched_values(study, kSmoothing);
  if (values.size() < 2 || values.size() > kMaxSmoothings) return;
  StudyChart best{.id = "fig7-best", .title = std::string("Best ") + study::name_of(goal.metric), .x = batch_axis()};
  best.y.label = study::name_of(goal.metric);
  StudyChart steps{.id = "fig7-steps", .title = "Steps to " + goal.text(), .x = batch_axis()};
  steps.y = steps_axis();
  for (size_t i = 0; i < values.size(); ++i) {
    const StudyData part = with_value(study, kSmoothing, values[i]);
    PlotSeries series = best_series(part, goal.metric);
    series.name = "smoothing " + significant(values[i], 3);
    series.look = static_cast<int>(i);
    series.kind = PlotSeries::Kind::kJoined;
    PlotSeries reached = series;
    reached.marks = result_series(part, study::steps_to_result(part, goal), goal).marks;
    best.series.push_back(std::move(series));
    steps.series.push_back(std::move(reached));
  }
  best.description = "Best value over all steps, one line a label smoothing.";
  steps.description = "Steps to the goal, one line a label smoothing.";
  best.has_legend = steps.has_legend = false;
  if (std::any_of(study.batches.begin(), study.batches.end(), [](const BatchStudy& batch) { return batch.early_stopping; }))
    best.note = "Some trials were stopped before their budget: the best value of a smoothing that was slower is an upper bound.";
  figure.panels = {best, steps};
}

void draw_parameters(const OneStudy& one, Figure& figure) {
  const auto& [study, analysis, goals, budgets] = one;
  std::vector<Quantity> quantities = {{"learning rate", "learning-rate", learning_rate, true}};
  if (searched_values(study, "momentum").size() > 1) {
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
}

/// A figure of one study. `draw` adds panels, none without data, and may set the introduction.
struct FigureRow {
  const char *id, *heading, *intro;
  bool shares_legend;
  void (*draw)(const OneStudy& one, Figure& figure);
};
constexpr FigureRow kFigures[] = {
    {"fig1_steps", "Steps to the goal",
     "The fewest steps of any trial at each batch size. Twice the batch for half the steps is the dashed line; where the points "
     "leave it, part of every larger batch is wasted; where they are flat, all of it is.",
     false, draw_steps},
    {"fig2_goals", "Several goals",
     "The same trials at easier and harder goals. A harder goal takes more steps; whether the curves bend at the same batch size says how "
     "much the result depends on the goal.",
     false, draw_goals},
    {"fig7_label_smoothing", "Label smoothing", "Trials by their label smoothing: the best value of each group, and its steps to the goal.",
     true, draw_label_smoothing},
    {"fig8_parameters", "Best hyperparameters",
     "The hyperparameters of the trial that reached the goal first. The usual rules of scaling learning rates start at the smallest batch "
     "size.",
     false, draw_parameters},
    {"fig9_scatter_steps", "Trials within a budget of steps", "", true, draw_scatter_steps},
    {"fig10_scatter_epochs", "Trials within a budget of epochs", "", true, draw_scatter_epochs},
    {"fig11_budgets", "Best value at a fixed budget",
     "The best value of the same trials within a number of steps, or of passes over the data. A budget of steps "
     "favours large batches, one of epochs small ones.",
     false, draw_budgets},
};

}  // namespace

std::vector<Figure> figures_of_study(const OneStudy& one) {
  std::vector<Figure> figures;
  for (const FigureRow& row : kFigures) {
    Figure figure{.id = row.id, .heading = row.heading, .intro = row.intro, .shares_legend = row.shares_legend};
    row.draw(one, figure);
    if (!figure.panels.empty()) figures.push_back(std::move(figure));
  }
  return figures;
}

Figure figure_worth(const study::Worth& worth, const study::GoalSpec& goal) {
  Figure figure{.id = "worth_time",
                .heading = "Time to the goal",
                .intro = "Steps to the goal times the seconds of a step, measured here with as many workers. The interval joins both."};
  std::map<int, PlotSeries> lines;
  for (const study::WorthCell& cell : worth.cells) {
    Mark mark{.x = static_cast<double>(cell.batch_size), .y = cell.seconds};
    if (std::isfinite(cell.seconds_low)) mark.bar = std::pair(cell.seconds_low, cell.seconds_high);
    mark.fields = {number_field("batch size", mark.x),
                   number_field("workers", cell.num_workers),
                   number_field("steps", cell.steps),
                   number_field("seconds a step", cell.step_seconds),
                   number_field("seconds to the goal", cell.seconds),
                   number_field("seconds low", cell.seconds_low),
                   number_field("seconds high", cell.seconds_high)};
    lines[cell.num_workers].marks.push_back(std::move(mark));
  }
  if (lines.empty()) return figure;
  StudyChart chart{.id = "worth", .title = "Seconds to " + goal.text() + " against batch size", .size = StudyChart::Size::kWide};
  chart.description = plural(static_cast<int64_t>(lines.size()), "line") + ", one a number of workers.";
  chart.x = batch_axis();
  chart.y = {"seconds", PlotAxis::Scale::kLog10, std::nullopt};
  for (auto& [num_workers, series] : lines) {
    series.name = plural(num_workers, "worker");
    series.look = static_cast<int>(chart.series.size());
    series.kind = PlotSeries::Kind::kJoined;
    chart.series.push_back(std::move(series));
  }
  figure.panels.push_back(std::move(chart));
  return figure;
}

}  // namespace cohort::report
