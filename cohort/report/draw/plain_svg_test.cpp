#include "cohort/report/draw/plain_svg.h"

#include <doctest/doctest.h>

#include <string>

#include "cohort/schedule/simulate.h"

namespace cohort::report {
namespace {

std::string chart() {
  StageCosts costs{{1, 1}, {1, 1}, {1, 1}};
  costs.send = costs.receive = 0.1;
  return timeline_svg(simulate(make_schedule("zb-h1", {.num_ranks = 2, .num_micro_batches = 3}), costs));
}

TEST_CASE("plain svg: what the simulator draws") { CHECK(is_plain_svg(chart())); }

TEST_CASE("plain svg: nothing that could do more than be looked at") {
  const auto with = [](const std::string& inside) { return "<svg width=\"10\">" + inside + "</svg>"; };
  CHECK(is_plain_svg(with("<g><rect x=\"1\"/><text>a &lt; b</text></g>")));
  for (const char* bad : {"<script>x()</script>",
                          "<g onclick=\"x()\"></g>",
                          "<a href=\"x\">b</a>",
                          "<image href=\"http://x\"/>",
                          "<g",
                          "</g>",
                          "<g><rect></g></rect>",
                          "<!-- a -->",
                          "<![CDATA[a]]>",
                          "<?xml?>",
                          "<g style=\"x\"></g>",
                          "<rect fill=\"url(#a)\"/>",
                          "<rect fill='red'/>",
                          "<rect fill=red/>",
                          "<rect x=\"1\"onclick=\"y\"/>",
                          "<svg></svg>",
                          "<foreignObject></foreignObject>",
                          "a > b",
                          "</svg><script>x()</script><svg>",
                          "<rect x=\"&#34;\"/>",
                          "<text xlink:href=\"a\"></text>",
                          "<G></G>"})
    CHECK_MESSAGE(!is_plain_svg(with(bad)), bad);
  for (const char* bad : {"", "<svg ", "<svg x=\"1\"", "<svg x=\"1\">", "<g></g>", "a<svg x=\"1\"></svg>", "<svg x=\"1\"></svg>a",
                          "<svg x=\"1\"></svg><script>x()</script>", "<svg x=\"1\"></svg><svg x=\"1\"></svg>"})
    CHECK_MESSAGE(!is_plain_svg(bad), bad);
}

TEST_CASE("plain svg: no piece of a chart passes for a whole one") {
  const std::string whole = chart();
  for (size_t length = 0; length + 1 < whole.size(); length += 7) CHECK(!is_plain_svg(whole.substr(0, length)));
}

}  // namespace
}  // namespace cohort::report
