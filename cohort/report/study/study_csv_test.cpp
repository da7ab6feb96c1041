#include "cohort/report/study/study_csv.h"

#include <doctest/doctest.h>

#include <limits>

namespace cohort::report {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

StudyChart two_points() {
  StudyChart chart{.id = "c", .title = "Steps"};
  PlotSeries series;
  for (const double batch : {1.0, 4.0})
    series.marks.push_back({.x = batch, .y = 1000 / batch + 10, .fields = {number_field("batch size", batch)}});
  chart.series.push_back(series);
  return chart;
}

TEST_CASE("study csv: a row a point, columns of all fields, exact numbers, quoted text") {
  StudyChart chart = two_points();
  chart.series[0].name = "a, \"b\"\nc";
  chart.series[0].marks[0].bar = std::pair(900.0, kInfinity);
  chart.series[0].marks[1].y = 1.0 / 3;
  chart.series[0].marks[1].fields.push_back(text_field("status", "COMPLETE"));
  CHECK(plot_csv({chart}) ==
        "panel,series,x,y,low,high,batch size,status\n"
        "Steps,\"a, \"\"b\"\"\nc\",1,1010,900,inf,1,\n"
        "Steps,\"a, \"\"b\"\"\nc\",4,0.3333333333333333,,,4,COMPLETE\n");
  CHECK(plot_csv({}) == "panel,series,x,y,low,high\n");
  // What a spreadsheet would compute is text there; a negative number is none of that.
  chart.series[0].name = "=1+cmd|' /C calc'!A0";
  chart.series[0].marks.resize(1);
  chart.series[0].marks[0].fields = {text_field("status", "-0.5"), text_field("note", "@SUM(A1)")};
  CHECK(plot_csv({chart}) == "panel,series,x,y,low,high,status,note\nSteps,'=1+cmd|' /C calc'!A0,1,1010,900,inf,-0.5,'@SUM(A1)\n");
}

}  // namespace
}  // namespace cohort::report
