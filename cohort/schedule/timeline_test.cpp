#include <doctest/doctest.h>

#include <set>
#include <sstream>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/schedule/generators.h"
#include "cohort/schedule/scheduler.h"
#include "cohort/schedule/simulate.h"
#include "tests/support/text.h"

namespace cohort {
namespace {

Timeline run(const std::string& name, int p, int m) {
  const Schedule schedule = make_schedule(name, {.num_ranks = p, .num_micro_batches = m});
  return simulate(schedule, equal_costs(schedule.num_stages));
}

TEST_CASE("the text chart") {
  CHECK(timeline_text(run("1f1b", 2, 2), 18) ==
        "rank 0 |F0F1....B0--..B1--|\n"
        "rank 1 |..F0B0--F1B1--....|\n");
  CHECK(timeline_text(run("zb-v", 1, 1), 12) == "rank 0 |F0f0i0w0I0W0|\n");
  CHECK(timeline_text(run("gpipe", 2, 1), 6) ==
        "rank 0 |F...B0|\n"
        "rank 1 |.FB0..|\n");
  // Too narrow for each action, and with times that are no multiples of each other: as wide as asked for.
  for (const std::string& line : split(timeline_text(run("1f1b", 4, 8), 20), '\n'))
    if (!line.empty()) CHECK(line.size() == 8 + 20 + 1);
  const Schedule schedule = make_schedule("1f1b", {.num_ranks = 2, .num_micro_batches = 3});
  StageCosts costs = equal_costs(2);
  costs.forward = {1.3, 0.9};
  for (const std::string& line : split(timeline_text(simulate(schedule, costs), 50), '\n'))
    if (!line.empty()) CHECK(line.size() == 8 + 50 + 1);
  const std::string many = timeline_text(run("1f1b", 11, 2));
  CHECK(many.find("rank  0 |") == 0);
  CHECK(many.find("\nrank 10 |") != std::string::npos);
}

TEST_CASE("the SVG has a bar for each action, each closed and inside the picture") {
  const Timeline timeline = run("zb-v", 3, 5);
  const std::string svg = timeline_svg(timeline);
  CHECK(count(svg, "<title>") == 3 * 2 * 5 * 3);
  for (const char* tag : {"svg", "g", "text", "title"})
    CHECK(count(svg, concat("<", tag, ">")) + count(svg, concat("<", tag, " ")) == count(svg, concat("</", tag, ">")));
  CHECK(svg.find("input gradients") != std::string::npos);
  CHECK(svg.find("send") == std::string::npos);
  CHECK(svg.find("F0.0: forward of stage 0, micro-batch 0, 0 to 1") != std::string::npos);
  size_t at = 0;
  while ((at = svg.find("<g><rect x=\"", at)) != std::string::npos) {
    std::istringstream in(svg.substr(at + 12));
    double x = 0, width = 0;
    in >> x;
    std::istringstream(svg.substr(svg.find("width=\"", at) + 7)) >> width;
    CHECK(x >= 52);
    CHECK(x + width <= 1000.02);
    ++at;
  }
}

TEST_CASE("the SVG has an axis of time, with a unit where times are seconds") {
  const Timeline timeline = run("1f1b", 2, 3);
  REQUIRE(timeline.makespan == 12);
  const std::string plain = timeline_svg(timeline), seconds = timeline_svg_of_seconds(timeline);
  for (const char* tick : {">0<", ">2<", ">10<", ">12<"}) CHECK(plain.find(tick) != std::string::npos);
  CHECK(plain.find("makespan 12, idle") != std::string::npos);
  CHECK(plain.find(" ms") == std::string::npos);
  for (const char* tick : {">0 ms<", ">2000 ms<", ">12000 ms<", "makespan 1.2e+04 ms, idle", "0 to 1000 ms</title>"})
    CHECK(seconds.find(tick) != std::string::npos);
}

TEST_CASE("the trace has every action once, in microseconds") {
  const Json trace = timeline_trace(run("1f1b", 2, 3));
  std::set<std::string> names;
  double last = 0;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    CHECK(names.insert(event["name"].get<std::string>()).second);
    CHECK(event["dur"].get<double>() == (event["cat"] == "forward" ? 1e6 : 2e6));
    last = std::max(last, event["ts"].get<double>() + event["dur"].get<double>());
  }
  CHECK(names.size() == 12);
  CHECK(last == 1e6 * 3 * (3 + 1));
}

}  // namespace
}  // namespace cohort
