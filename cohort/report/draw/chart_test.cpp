#include "cohort/report/draw/chart.h"

#include <doctest/doctest.h>

#include <cmath>
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

}  // namespace
}  // namespace cohort::report
