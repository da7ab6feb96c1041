// The chart of the report: one bar an action, coloured by its kind and lighter for the later stages of a rank; the micro-batch is written
// on it where it fits, and the pointer shows action and times. Stands alone or in a page; text takes the colour of the page.
#include <array>
#include <cstdio>

#include "cohort/base/fail.h"
#include "cohort/schedule/timeline_chart.h"

namespace cohort {
namespace {

constexpr double kWidth = 1000, kLeft = 52, kRowHeight = 22, kRowGap = 4, kTop = 30;
constexpr size_t kMaxBars = 50'000;  // More would only slow the page down; the trace has them all.

struct Look {
  const char *name, *color;
};
// By ActionKind. Distinct in hue and in lightness, dark text is readable on all.
constexpr std::array<Look, 8> kLooks = {{{"forward", "#7eb0e0"},
                                         {"backward", "#f2a65a"},
                                         {"input gradients", "#f2a65a"},
                                         {"weight gradients", "#86c98a"},
                                         {"send", "#b9a3d9"},
                                         {"receive", "#d9c2ec"},
                                         {"send", "#b9a3d9"},
                                         {"receive", "#d9c2ec"}}};

std::string number(double value) {
  char out[40];
  std::snprintf(out, sizeof out, "%.2f", value);
  return out;
}

std::string short_number(double value) {
  char out[40];
  std::snprintf(out, sizeof out, "%.6g", value);
  return out;
}

std::string bar(const TimedAction& timed, int part, double x, double width, double y) {
  const Look& look = kLooks[static_cast<size_t>(timed.action.kind)];
  std::string out =
      concat("<g><rect x=\"", number(x), "\" y=\"", number(y), "\" width=\"", number(width), "\" height=\"", kRowHeight, "\" fill=\"",
             look.color, "\" fill-opacity=\"", part % 2 == 0 ? "1" : "0.55", "\" stroke=\"#333\" stroke-width=\"0.4\"/>");
  const std::string label = std::to_string(timed.action.micro_batch);
  if (width > 7.0 * static_cast<double>(label.size()))
    out += concat("<text x=\"", number(x + width / 2), "\" y=\"", number(y + 15), "\" text-anchor=\"middle\" fill=\"#111\">", label,
                  "</text>");
  return out + concat("<title>", action_text(timed.action).substr(0, action_text(timed.action).find_first_of("<>")), ": ", look.name,
                      " of stage ", timed.action.stage, ", micro-batch ", timed.action.micro_batch, ", ", short_number(timed.start), " to ",
                      short_number(timed.end), "</title></g>\n");
}

std::string legend(const Timeline& timeline) {
  std::array<bool, 8> used = {};
  for (const auto& rank : timeline.ranks)
    for (const TimedAction& timed : rank) used[static_cast<size_t>(timed.action.kind)] = true;
  used[6] = used[7] = false;  // Look like 4 and 5.
  std::string out;
  double x = kLeft;
  for (size_t kind = 0; kind < used.size(); ++kind) {
    if (!used[kind]) continue;
    out += concat("<rect x=\"", x, "\" y=\"6\" width=\"12\" height=\"12\" fill=\"", kLooks[kind].color, "\"/><text x=\"", x + 17,
                  "\" y=\"16\" fill=\"currentColor\">", kLooks[kind].name, "</text>\n");
    x += 145;
  }
  char text[120];
  std::snprintf(text, sizeof text, "makespan %.6g, idle %.1f %%", timeline.makespan, 100 * timeline.bubble);
  return out + concat("<text x=\"", kWidth, "\" y=\"16\" text-anchor=\"end\" fill=\"currentColor\">", text, "</text>\n");
}

}  // namespace

std::string timeline_svg(const Timeline& timeline) {
  const double height = kTop + static_cast<double>(timeline.ranks.size()) * (kRowHeight + kRowGap);
  const double start = chart_start(timeline), scale = timeline.makespan > 0 ? (kWidth - kLeft) / timeline.makespan : 0;
  std::string out =
      concat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", kWidth, " ", height,
             "\" width=\"100%\" font-family=\"sans-serif\" font-size=\"12\" role=\"img\" aria-label=\"pipeline schedule\">\n");
  out += legend(timeline);
  size_t num_bars = 0;
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const double y = kTop + static_cast<double>(rank) * (kRowHeight + kRowGap);
    out += concat("<text x=\"0\" y=\"", number(y + 15), "\" fill=\"currentColor\">rank ", rank, "</text><rect x=\"", kLeft, "\" y=\"",
                  number(y), "\" width=\"", kWidth - kLeft, "\" height=\"", kRowHeight, "\" fill=\"#888\" fill-opacity=\"0.12\"/>\n");
    const std::vector<int> stages = chart_parts(timeline.ranks[rank]);
    for (const TimedAction& timed : timeline.ranks[rank])
      if (num_bars++ < kMaxBars)
        out +=
            bar(timed, chart_part(stages, timed.action.stage), kLeft + (timed.start - start) * scale, (timed.end - timed.start) * scale, y);
  }
  if (num_bars > kMaxBars)
    out += concat("<text x=\"", kLeft, "\" y=\"", number(height - 2), "\" fill=\"currentColor\">", num_bars - kMaxBars,
                  " bars more are not drawn</text>\n");
  return out + "</svg>\n";
}

}  // namespace cohort
