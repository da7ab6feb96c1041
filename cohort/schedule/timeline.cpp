// Charts of a timeline: for the terminal, for the report, and for trace viewers.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/schedule/scheduler.h"
#include "cohort/schedule/simulate.h"

namespace cohort {

namespace {

/// The stages of one rank in order, and the index of one among them: charts distinguish them by letter case or shade.
std::vector<int> chart_parts(const std::vector<TimedAction>& rank) {
  std::vector<int> stages;
  for (const TimedAction& timed : rank) stages.push_back(timed.action.stage);
  std::sort(stages.begin(), stages.end());
  stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
  return stages;
}

int chart_part(const std::vector<int>& stages, int stage) {
  return static_cast<int>(std::lower_bound(stages.begin(), stages.end(), stage) - stages.begin());
}

/// When the first action begins.
double chart_start(const Timeline& timeline) {
  bool found = false;
  double start = 0;
  for (const auto& rank : timeline.ranks)
    if (!rank.empty()) start = found ? std::min(start, rank.front().start) : rank.front().start, found = true;
  return start;
}

}  // namespace

// The terminal's chart: a row per rank, time from left to right. Letters are actions (F forward, B whole backward, I input part, W weight
// part, s and r sending and receiving; lower case f b i w for the second, fourth, ... stage of a rank), numbers micro-batches, dots idle
// time.

namespace {

/// Equal actions get equal widths where possible: if all times are multiples of the shortest, and that is at least one column wide.
double columns_per_unit(const Timeline& timeline, int columns) {
  double shortest = timeline.makespan;
  for (const auto& rank : timeline.ranks)
    for (const TimedAction& timed : rank)
      if (timed.end > timed.start) shortest = std::min(shortest, timed.end - timed.start);
  const double share = columns / timeline.makespan, whole = std::floor(share * shortest + 1e-9);
  const auto is_multiple = [&](double time) { return std::abs(time / shortest - std::round(time / shortest)) < 1e-6; };
  for (const auto& rank : timeline.ranks)
    for (const TimedAction& timed : rank)
      if (!is_multiple(timed.start) || !is_multiple(timed.end)) return share;
  return whole >= 1 ? whole / shortest : share;
}

char letter(const Action& action, bool odd) {
  static const char kUpper[] = "FBIWsrsr", kLower[] = "fbiwsrsr";
  return (odd ? kLower : kUpper)[static_cast<size_t>(action.kind)];
}

}  // namespace

std::string timeline_text(const Timeline& timeline, int columns) {
  std::string out;
  const size_t label_width = std::to_string(std::max<size_t>(1, timeline.ranks.size()) - 1).size();
  const double start = chart_start(timeline), scale = timeline.makespan > 0 ? columns_per_unit(timeline, std::max(1, columns)) : 0;
  const auto column = [&](double time) { return static_cast<size_t>(std::lround((time - start) * scale)); };
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    std::string row(column(start + timeline.makespan), '.');
    const std::vector<int> stages = chart_parts(timeline.ranks[rank]);
    for (const TimedAction& timed : timeline.ranks[rank]) {
      const size_t from = column(timed.start), to = column(timed.end);
      if (from >= to) continue;
      std::string cell = concat(letter(timed.action, chart_part(stages, timed.action.stage) % 2 == 1), timed.action.micro_batch);
      if (cell.size() > to - from) cell.resize(1);
      cell.resize(to - from, '-');
      row.replace(from, to - from, cell);
    }
    const std::string label = std::to_string(rank);
    out += "rank " + std::string(label_width - label.size(), ' ') + label + " |" + row + "|\n";
  }
  return out;
}

// The report's chart: a bar per action, coloured by kind and lighter for later stages of a rank, labelled with the micro-batch where it
// fits, with a tooltip and a time axis. Works alone or in a page, whose text colour it uses.

namespace {

constexpr double kWidth = 1000, kLeft = 52, kRowHeight = 22, kRowGap = 4, kTop = 30, kAxisHeight = 24;
constexpr double kMostTicks = 10;
constexpr size_t kMaxBars = 50'000;  // More would slow the page down; the trace has all.

struct Style {
  const char *name, *color;
};
// By ActionKind. Distinct in hue and lightness; dark text is readable on all.
constexpr std::array<Style, 8> kStyles = {{{"forward", "#7eb0e0"},
                                           {"backward", "#f2a65a"},
                                           {"input gradients", "#f2a65a"},
                                           {"weight gradients", "#86c98a"},
                                           {"send", "#b9a3d9"},
                                           {"receive", "#d9c2ec"},
                                           {"send", "#b9a3d9"},
                                           {"receive", "#d9c2ec"}}};

std::string formatted(const char* format, double value) {
  char out[40];
  std::snprintf(out, sizeof out, format, value);
  return out;
}
std::string number(double value) { return formatted("%.2f", value); }
std::string short_number(double value) { return formatted("%.6g", value); }

/// Factor and unit of times.
struct Unit {
  double factor = 1;
  const char* name = "";
};

std::string bar(const TimedAction& timed, int part, double x, double width, double y, const Unit& unit) {
  const Style& style = kStyles[static_cast<size_t>(timed.action.kind)];
  std::string out =
      concat("<g><rect x=\"", number(x), "\" y=\"", number(y), "\" width=\"", number(width), "\" height=\"", kRowHeight, "\" fill=\"",
             style.color, "\" fill-opacity=\"", part % 2 == 0 ? "1" : "0.55", "\" stroke=\"#333\" stroke-width=\"0.4\"/>");
  const std::string label = std::to_string(timed.action.micro_batch);
  if (width > 7.0 * static_cast<double>(label.size()))
    out += concat("<text x=\"", number(x + width / 2), "\" y=\"", number(y + 15), "\" text-anchor=\"middle\" fill=\"#111\">", label,
                  "</text>");
  return out + concat("<title>", action_text(timed.action).substr(0, action_text(timed.action).find_first_of("<>")), ": ", style.name,
                      " of stage ", timed.action.stage, ", micro-batch ", timed.action.micro_batch, ", ",
                      short_number(unit.factor * timed.start), " to ", short_number(unit.factor * timed.end), unit.name, "</title></g>\n");
}

std::string legend(const Timeline& timeline, const Unit& unit) {
  std::array<bool, 8> used = {};
  for (const auto& rank : timeline.ranks)
    for (const TimedAction& timed : rank) used[static_cast<size_t>(timed.action.kind)] = true;
  used[6] = used[7] = false;  // Style like 4 and 5.
  std::string out;
  double x = kLeft;
  for (size_t kind = 0; kind < used.size(); ++kind) {
    if (!used[kind]) continue;
    out += concat("<rect x=\"", x, "\" y=\"6\" width=\"12\" height=\"12\" fill=\"", kStyles[kind].color, "\"/><text x=\"", x + 17,
                  "\" y=\"16\" fill=\"currentColor\">", kStyles[kind].name, "</text>\n");
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

// The timeline as trace events (the format of chrome://tracing, which Perfetto opens): one thread a rank, times in microseconds where those
// of the timeline are seconds.

const char* trace_category(const Action& action) {
  static const char* const kCategories[] = {"forward", "backward", "backward_input", "backward_weight",
                                            "send",    "receive",  "send",           "receive"};
  return kCategories[static_cast<size_t>(action.kind)];
}

Json timeline_trace(const Timeline& timeline) {
  constexpr double kMicroseconds = 1e6;
  Json events = Json::array();
  events.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", 0}, {"args", {{"name", "pipeline schedule (simulated)"}}}});
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    events.push_back({{"name", "thread_name"}, {"ph", "M"}, {"pid", 0}, {"tid", rank}, {"args", {{"name", concat("rank ", rank)}}}});
    for (const auto& [action, start, end] : timeline.ranks[rank])
      events.push_back({{"name", action_text(action)},
                        {"cat", trace_category(action)},
                        {"ph", "X"},
                        {"ts", start * kMicroseconds},
                        {"dur", (end - start) * kMicroseconds},
                        {"pid", 0},
                        {"tid", rank},
                        {"args", {{"stage", action.stage}, {"micro_batch", action.micro_batch}}}});
  }
  return {{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}};
}

}  // namespace cohort
