#include "cohort/report/draw/chart.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "tests/support/text.h"

namespace cohort::report {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

StudyChart sample() {
  StudyChart chart{.id = "c", .title = "Steps", .description = "Falls."};
  chart.x = {"batch", PlotAxis::Scale::kLog2, std::nullopt};
  chart.y = {"steps", PlotAxis::Scale::kLog2, std::nullopt};
  PlotSeries series{.name = "measured"};
  for (double batch = 1; batch <= 256; batch *= 4)
    series.marks.push_back({.x = batch, .y = 1000 / batch + 10, .fields = {number_field("batch size", batch)}});
  chart.series.push_back(series);
  return chart;
}

TEST_CASE("study chart: one mark a point, in its place, with its words") {
  const std::string svg = study_chart(sample());
  CHECK(count(svg, "<use class=\"mark s0\"") == 5);
  CHECK(contains(svg, "<title>measured\nbatch size: 64</title>"));
  CHECK(contains(svg, "role=\"group\" aria-labelledby=\"c-title\" aria-describedby=\"c-desc\""));
  CHECK(contains(svg, "<desc id=\"c-desc\">Falls.</desc>"));
  // Margins are alike on both sides, and batch sizes a constant ratio apart stand at a constant distance.
  CHECK(contains(svg, "x=\"2.83%\""));
  CHECK(contains(svg, "x=\"97.17%\""));
  CHECK(contains(svg, "x=\"50%\""));
}

TEST_CASE("study chart: what no axis can show is left out, not drawn somewhere") {
  StudyChart chart = sample();
  chart.series[0].marks.push_back({.x = 0, .y = 5});
  chart.series[0].marks.push_back({.x = 8, .y = -5});
  chart.series[0].marks.push_back({.x = 8, .y = std::nan("")});
  chart.series[0].marks.push_back({.x = 8, .y = kInfinity});
  chart.series[0].marks[0].bar = std::pair(900.0, kInfinity);
  chart.series[0].marks[1].bar = std::pair(std::nan(""), 5.0);
  chart.uprights = {{"end", 16, std::pair(8.0, kInfinity)}, {"out of sight", 1e9, std::nullopt}, {"unknown", std::nan(""), std::nullopt}};
  const std::string svg = study_chart(chart);
  CHECK(count(svg, "<use class=\"mark s0\"") == 5);
  CHECK(count(svg, "class=\"bar s0 open\"") == 1);
  CHECK(count(svg, "class=\"bar") == 1);
  CHECK(contains(svg, ">end</text>"));
  CHECK_FALSE(contains(svg, "out of sight"));
  CHECK_FALSE(contains(svg, "unknown"));
  CHECK_FALSE(contains(svg, "nan"));
  CHECK_FALSE(contains(svg, "inf"));
  chart.series[0].marks.clear();
  CHECK(contains(study_chart(chart), "No point to show."));
}

TEST_CASE("study chart: a single point has axes around it") {
  StudyChart chart = sample();
  chart.series[0].marks.resize(1);
  for (const auto scale : {PlotAxis::Scale::kLinear, PlotAxis::Scale::kLog2, PlotAxis::Scale::kLog10}) {
    chart.x.scale = chart.y.scale = scale;
    const std::string svg = study_chart(chart);
    CHECK(count(svg, "<use class=\"mark") == 2);  // The other one is the legend's.
    CHECK_FALSE(contains(svg, "nan"));
  }
}

TEST_CASE("study chart: names are text, whatever they hold") {
  StudyChart chart = sample();
  const std::string bad = "</title><script>alert(1)</script>\"'&\x01";
  chart.title = chart.description = chart.note = chart.x.label = chart.series[0].name = bad;
  chart.series[0].marks[0].fields = {text_field(bad, bad)};
  chart.uprights = {{bad, 16, std::nullopt}};
  const std::string svg = study_chart(chart);
  CHECK_FALSE(contains(svg, "<script"));
  CHECK_FALSE(contains(svg, "\x01"));
  CHECK(count(svg, "&lt;script&gt;") >= 8);
}

TEST_CASE("study chart: lines are drawn through marks or alone, looks repeat after 56 series") {
  StudyChart chart = sample();
  chart.series[0].kind = PlotSeries::Kind::kJoined;
  PlotSeries fit = chart.series[0];
  fit.kind = PlotSeries::Kind::kDashed;
  fit.look = PlotSeries::kGrey;
  fit.marks.push_back({.x = 1024, .y = 1e-9});  // Lines do not stretch the axes.
  chart.series.push_back(fit);
  const std::string svg = study_chart(chart);
  CHECK(count(svg, "<path class=\"s0 joined\"") == 1);
  CHECK(count(svg, "<path class=\"s-grey dashed\"") == 1);
  CHECK(count(svg, "<use class=\"mark s0\"") == 5);
  CHECK_FALSE(contains(svg, "s-grey\" href"));
  CHECK(contains(svg, "x=\"97.17%\""));
  const auto look = [&](int number) {
    StudyChart one = sample();
    one.series[0].look = number;
    const std::string text = study_chart(one);
    return text.substr(text.find("<use class=\"mark s"), 40);
  };
  CHECK(look(0) != look(7));
  CHECK(look(0) != look(8));
  CHECK(look(0) == look(56));
}

TEST_CASE("number field: whole numbers for people, every digit for the table") {
  CHECK(number_field("n", 12345678).text == "12,345,678");
  CHECK(number_field("n", 0.1).exact == "0.1");
  CHECK(number_field("n", 0.1 + 0.2).exact == "0.30000000000000004");
  CHECK(number_field("n", 0.1 + 0.2).text == "0.3000");
  CHECK(number_field("n", std::nan("")).exact.empty());
}

}  // namespace
}  // namespace cohort::report
