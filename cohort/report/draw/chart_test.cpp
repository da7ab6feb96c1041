#include "cohort/report/draw/chart.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "cohort/report/draw/page.h"
#include "tests/support/text.h"

namespace cohort::report {
namespace {

LineChart chart_of(Curve curve) {
  LineChart chart;
  chart.id = "x";
  chart.title = "Loss <&>";
  chart.x_high = curve.empty() ? 1 : curve.back().x;
  chart.series.push_back({"training", "c-train", std::move(curve), false, false, "0.1"});
  return chart;
}

TEST_CASE("escape_html: all that could leave text or an attribute, and control characters") {
  CHECK(escape_html("<script>&'\"") == "&lt;script&gt;&amp;&#39;&quot;");
  CHECK(escape_html(std::string("a\0b\x1b\n\t\x7f", 7)) == "a\ufffdb\ufffd\n\t\ufffd");
  CHECK(escape_html("\u00e9\u4e2d") == "\u00e9\u4e2d");
  CHECK(element("a", {{"title", "\"x\"<"}, {"class", ""}}, "<b/>") == "<a title=\"&quot;x&quot;&lt;\"><b/></a>");
}

TEST_CASE("line chart: places, title, legend") {
  const std::string svg = line_chart(chart_of({{0, 0}, {50, 1}, {100, 0.5}}));
  CHECK(svg.find("d=\"M0 1000L500 0L1000 500\"") != std::string::npos);
  CHECK(svg.find("Loss &lt;&amp;&gt;") != std::string::npos);
  CHECK(svg.find("Loss <") == std::string::npos);
  CHECK(svg.find("training <b>0.1</b>") != std::string::npos);
  CHECK(count(svg, "<svg") == count(svg, "</svg>"));
}

TEST_CASE("line chart: thousands of points become about 600, a gap begins a new piece") {
  Curve curve;
  for (int i = 0; i < 20000; ++i) curve.push_back({double(i), std::sin(i * 0.7)});
  for (int i = 9000; i < 9500; ++i) curve[i].y = std::nan("");
  const std::string svg = line_chart(chart_of(curve));
  CHECK(count(svg, "L") < 600 + 10);
  CHECK(count(svg, "L") > 500);
  const size_t path = svg.find(" d=\"M");
  CHECK(count(svg.substr(path, svg.find('"', path + 4) - path), "M") == 2);
  CHECK(svg.find("nan") == std::string::npos);
  CHECK(svg.find("inf") == std::string::npos);
}

TEST_CASE("line chart: a single point is a dot, nothing finite is nothing, a huge value breaks no number") {
  CHECK(count(line_chart(chart_of({{1, 0.7}})), "<circle") == 1);
  CHECK(line_chart(chart_of({})) == "");
  CHECK(line_chart(chart_of({{1, std::nan("")}, {2, INFINITY}})) == "");
  const std::string svg = line_chart(chart_of({{1, 1e308}, {2, -1e308}, {3, 0}}));
  CHECK(svg.find("nan") == std::string::npos);
  CHECK(svg.find("inf") == std::string::npos);
}

TEST_CASE("line chart: values <= 0 are gaps on a logarithmic axis") {
  LineChart chart = chart_of({{0, 1}, {1, 0}, {2, 100}, {3, 10}});
  chart.logarithmic = true;
  const std::string svg = line_chart(chart);
  CHECK(svg.find("d=\"M0 1000M666.7 0L1000 500\"") != std::string::npos);
  CHECK(svg.find("data-log=\"1\"") != std::string::npos);
}

TEST_CASE("line chart: outliers of a thin series do not flatten the rest and are counted") {
  Curve curve;
  for (int i = 0; i < 1000; ++i) curve.push_back({double(i), 1 + 0.1 * std::sin(i)});
  curve[500].y = 1e6;
  LineChart chart = chart_of(curve);
  CHECK(line_chart(chart).find("outlier") == std::string::npos);
  chart.series[0].thin = true;
  const std::string svg = line_chart(chart);
  CHECK(svg.find("1 outlier lies outside of the plot.") != std::string::npos);
  CHECK(svg.find("1,000,000") == std::string::npos);
}

TEST_CASE("line chart: markers inside the range only, many checkpoints thinned, labels apart") {
  LineChart chart = chart_of({{0, 0}, {1000, 1}});
  for (int i = 0; i <= 1100; ++i) chart.markers.push_back({Marker::Kind::kCheckpoint, double(i), "checkpoint"});
  chart.markers.push_back({Marker::Kind::kResume, 100, "resumed at <100>"});
  chart.markers.push_back({Marker::Kind::kResume, 101, "resumed at 101"});
  const std::string svg = line_chart(chart);
  CHECK(count(svg, "class=\"m-checkpoint\" d=") <= 60);
  CHECK(count(svg, "class=\"m-resume\" x1=") == 2);
  CHECK(count(svg, ">resumed</text>") == 1);
  CHECK(svg.find("resumed at &lt;100&gt;") != std::string::npos);
}

TEST_CASE("stacked bar: widths are shares, parts without size are left out") {
  const std::string bar = stacked_bar({{"c-data", 1}, {"c-compute", 3}, {"c-other", 0}, {"c-other", std::nan("")}}, 8, "a<b", "stack");
  CHECK(bar.find("x=\"0%\" width=\"12.5%\"") != std::string::npos);
  CHECK(bar.find("x=\"12.5%\" width=\"37.5%\"") != std::string::npos);
  CHECK(count(bar, "<rect") == 2);
  CHECK(bar.find("<title>a&lt;b</title>") != std::string::npos);
}

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
  chart.vertical_lines = {
      {"end", 16, std::pair(8.0, kInfinity)}, {"out of sight", 1e9, std::nullopt}, {"unknown", std::nan(""), std::nullopt}};
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
  chart.vertical_lines = {{bad, 16, std::nullopt}};
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
