// Figures 1 and 2: steps to the goal against batch size.

#include <cmath>

#include "cohort/report/draw/format.h"
#include "cohort/report/study/study_figures.h"

namespace cohort::report {
namespace {

using study::Analysis;
using study::StepsToResult;

constexpr int kCurvePoints = 48;
constexpr char kHollowNote[] =
    "Hollow: trials were stopped there before they could show whether they reach this goal sooner; fewer steps may be enough.";

template <typename Function>
PlotSeries curve(const std::string& name, int look, PlotSeries::Kind kind, double low, double high, Function steps_at) {
  PlotSeries series{.name = name, .look = look, .kind = kind};
  for (int i = 0; i < kCurvePoints; ++i) {
    const double batch = low * std::pow(high / low, static_cast<double>(i) / (kCurvePoints - 1));
    series.marks.push_back({.x = batch, .y = steps_at(batch)});
  }
  return series;
}

PlotSeries measured(const StudyData& study, const std::vector<StepsToResult>& steps, const GoalSpec& goal) {
  PlotSeries series;
  for (const StepsToResult& result : steps) {
    if (auto mark = result_mark(study, result, goal)) series.marks.push_back(std::move(*mark));
  }
  return series;
}

bool any_hollow(const StudyChart& chart) {
  for (const PlotSeries& series : chart.series) {
    for (const Mark& mark : series.marks) {
      if (mark.hollow) return true;
    }
  }
  return false;
}

StudyChart steps_chart(const std::string& id, const std::string& title) {
  StudyChart chart;
  chart.id = id;
  chart.title = title;
  chart.x = {"batch size (samples)", PlotAxis::Scale::kLog2, std::nullopt};
  chart.y = {"training steps", PlotAxis::Scale::kLog2, std::nullopt};
  chart.size = StudyChart::Size::kWide;
  return chart;
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

}  // namespace

Figure figure_steps(const StudyData& study, const Analysis& analysis) {
  Figure figure{
      .id = "fig1_steps",
      .heading = "Steps to the goal",
      .intro =
          "The least steps that any trial needed at each batch size. Twice the batch for half the steps is the dashed line; where "
          "the points leave it, part of every larger batch is wasted; where they are flat, all of it is."};
  StudyChart chart = steps_chart("fig1", "Steps to " + analysis.goal.text() + " against batch size");
  PlotSeries points = measured(study, analysis.steps, analysis.goal);
  points.name = "measured, with 95 % interval";
  if (points.marks.empty()) {
    chart.note = "No trial of any batch size reached " + analysis.goal.text() + ".";
    figure.panels.push_back(chart);
    return figure;
  }
  const double low = points.marks.front().x, high = points.marks.back().x, first_steps = points.marks.front().y;
  chart.description = plural(static_cast<int64_t>(points.marks.size()), "batch size") + " from " + plain_number(low) + " to " +
                      plain_number(high) + "; steps fall from " + plain_number(first_steps) + " to " + plain_number(points.marks.back().y) +
                      ".";
  chart.note = missing_note(analysis.steps);
  chart.series.push_back(std::move(points));
  if (high > low) {
    chart.series.push_back(curve("ideal: twice the batch, half the steps", PlotSeries::kGrey, PlotSeries::Kind::kDashed, low, high,
                                 [&](double batch) { return first_steps * low / batch; }));
    for (size_t i = 0; i < analysis.fits.size(); ++i) {
      const study::Fit& fit = analysis.fits[i];
      if (fit.law == study::Law::kLogLinear) continue;  // a + b / B is the hyperbola by other names: one curve over the other.
      const auto kind = fit.law == study::Law::kKnee ? PlotSeries::Kind::kDashed : PlotSeries::Kind::kCurve;
      chart.series.push_back(
          curve(study::name_of(fit.law), static_cast<int>(i) + 1, kind, low, high, [&](double batch) { return fit.steps_at(batch); }));
    }
  }
  const study::Regimes& regimes = analysis.regimes;
  if (regimes.perfect_to)
    chart.uprights.push_back({"perfect to " + plain_number(*regimes.perfect_to), *regimes.perfect_to, regimes.perfect_interval});
  if (regimes.flat_from)
    chart.uprights.push_back({"flat from " + plain_number(*regimes.flat_from), *regimes.flat_from, regimes.flat_interval});
  if (any_hollow(chart)) chart.note += (chart.note.empty() ? "" : " ") + std::string(kHollowNote);
  figure.panels.push_back(std::move(chart));
  return figure;
}

Figure figure_goals(const StudyData& study, const GoalSpec& goal, const std::vector<GoalSpec>& asked) {
  Figure figure{
      .id = "fig2_goals",
      .heading = "Several goals",
      .intro =
          "The same trials asked for easier and harder goals. A harder goal takes more steps; whether the curves bend at the same "
          "batch size says how much the result depends on the goal."};
  StudyChart chart = steps_chart("fig2", "Steps against batch size at several goals");
  int look = 0;
  for (const GoalSpec& one : several_goals(study, goal, asked)) {
    PlotSeries series = measured(study, study::steps_to_result(study, one), one);
    if (series.marks.empty()) {
      if (!asked.empty()) chart.note += "No trial of any batch size reached " + one.text() + ". ";
      continue;
    }
    series.name = one.text();
    series.look = look++;
    series.kind = PlotSeries::Kind::kJoined;
    for (Mark& mark : series.marks) mark.bar.reset();  // Bars of six curves hide each other; figure 1 has them.
    chart.series.push_back(std::move(series));
  }
  if (chart.series.empty()) return figure;
  chart.description = plural(static_cast<int64_t>(chart.series.size()), "goal") + ", easiest first.";
  if (any_hollow(chart)) chart.note += kHollowNote;
  figure.panels.push_back(std::move(chart));
  return figure;
}

}  // namespace cohort::report
