// The chart of the report: one bar an action, coloured by its kind and lighter for the later stages of a rank; the micro-batch is written
// on it where it fits, and the pointer shows action and times; an axis of time is below. Stands alone or in a page; text takes the colour
// of the page.
#include "cohort/schedule/timeline_svg.h"

#include <array>
#include <cmath>
#include <cstdio>

#include "cohort/base/fail.h"
#include "cohort/schedule/timeline_chart.h"

namespace cohort {
namespace {

constexpr double kWidth = 1000, kLeft = 52, kRowHeight = 22, kRowGap = 4, kTop = 30, kAxisHeight = 24;
constexpr double kMostTicks = 10;
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

/// What times are multiplied by, and what stands behind them.
struct Unit {
  double factor = 1;
  const char* name = "";
};

std::string bar(const TimedAction& timed, int part, double x, double width, double y, const Unit& unit) {
  const Look& look = kLooks[static_cast<size_t>(timed.action.kind)];
  std::string out =
      concat("<g><rect x=\"", number(x), "\" y=\"", number(y), "\" width=\"", number(width), "\" height=\"", kRowHeight, "\" fill=\"",
             look.color, "\" fill-opacity=\"", part % 2 == 0 ? "1" : "0.55", "\" stroke=\"#333\" stroke-width=\"0.4\"/>");
  const std::string label = std::to_string(timed.action.micro_batch);
  if (width > 7.0 * static_cast<double>(label.size()))
    out += concat("<text x=\"", number(x + width / 2), "\" y=\"", number(y + 15), "\" text-anchor=\"middle\" fill=\"#111\">", label,
                  "</text>");
  return out + concat("<title>", action_text(timed.action).substr(0, action_text(timed.action).find_first_of("<>")), ": ", look.name,
                      " of stage ", timed.action.stage, ", micro-batch ", timed.action.micro_batch, ", ",
                      short_number(unit.factor * timed.start), " to ", short_number(unit.factor * timed.end), unit.name, "</title></g>\n");
}

std::string legend(const Timeline& timeline, const Unit& unit) {
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
  std::snprintf(text, sizeof text, "makespan %.4g%s, idle %.1f %%", unit.factor * timeline.makespan, unit.name, 100 * timeline.bubble);
  return out + concat("<text x=\"", kWidth, "\" y=\"16\" text-anchor=\"end\" fill=\"currentColor\">", text, "</text>\n");
}

/// Ticks at 1, 2 or 5 times a power of ten, from the first start on.
std::string axis(const Timeline& timeline, const Unit& unit, double y) {
  const double length = unit.factor * timeline.makespan;
  if (!(length > 0) || !std::isfinite(length)) return "";
  double step = std::pow(10, std::floor(std::log10(length / kMostTicks)));
  for (const double factor : {2.0, 2.5, 2.0})
    if (length / step > kMostTicks) step *= factor;
  std::string out;
  for (int tick = 0; tick * step <= length * (1 + 1e-9); ++tick) {
    const double x = kLeft + tick * step / length * (kWidth - kLeft);
    const bool is_last = x > kWidth - 20;
    out += concat("<rect x=\"", number(is_last ? kWidth - 1 : x), "\" y=\"", number(y),
                  "\" width=\"1\" height=\"5\" fill=\"#888\"/><text x=\"", number(is_last ? kWidth : x), "\" y=\"", number(y + 18),
                  "\" text-anchor=\"",
                  is_last     ? "end"
                  : tick == 0 ? "start"
                              : "middle",
                  "\" fill=\"currentColor\">", short_number(tick * step), unit.name, "</text>\n");
  }
  return out;
}

std::string svg_of(const Timeline& timeline, const Unit& unit) {
  const double bottom = kTop + static_cast<double>(timeline.ranks.size()) * (kRowHeight + kRowGap), height = bottom + kAxisHeight;
  const double start = chart_start(timeline), scale = timeline.makespan > 0 ? (kWidth - kLeft) / timeline.makespan : 0;
  std::string out =
      concat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", kWidth, " ", height,
             "\" width=\"100%\" font-family=\"sans-serif\" font-size=\"12\" role=\"img\" aria-label=\"pipeline schedule\">\n");
  out += legend(timeline, unit);
  size_t num_bars = 0;
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const double y = kTop + static_cast<double>(rank) * (kRowHeight + kRowGap);
    out += concat("<text x=\"0\" y=\"", number(y + 15), "\" fill=\"currentColor\">rank ", rank, "</text><rect x=\"", kLeft, "\" y=\"",
                  number(y), "\" width=\"", kWidth - kLeft, "\" height=\"", kRowHeight, "\" fill=\"#888\" fill-opacity=\"0.12\"/>\n");
    const std::vector<int> stages = chart_parts(timeline.ranks[rank]);
    for (const TimedAction& timed : timeline.ranks[rank])
      if (num_bars++ < kMaxBars)
        out += bar(timed, chart_part(stages, timed.action.stage), kLeft + (timed.start - start) * scale, (timed.end - timed.start) * scale,
                   y, unit);
  }
  if (num_bars > kMaxBars)
    out += concat("<text x=\"", kLeft, "\" y=\"", number(kTop - 2), "\" fill=\"currentColor\">", num_bars - kMaxBars,
                  " bars more are not drawn</text>\n");
  return out + axis(timeline, unit, bottom) + "</svg>\n";
}

}  // namespace

std::string timeline_svg(const Timeline& timeline) { return svg_of(timeline, {}); }

std::string timeline_svg_of_seconds(const Timeline& timeline) { return svg_of(timeline, {1000, " ms"}); }

}  // namespace cohort
