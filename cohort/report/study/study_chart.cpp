// Places are percentages of the width and pixels of the height, as in svg.cpp, so text and marks keep their size at any width. Lines stand
// in an inner <svg> that stretches; it also cuts them off at the edges of the plot. Marks are <use> elements: shapes are defined once a
// page, and colour and fill are inherited.

#include "cohort/report/study/study_chart.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cohort/base/text/text.h"
#include "cohort/report/draw/format.h"
#include "cohort/report/draw/page.h"

namespace cohort::report {
namespace {

constexpr double kMargin = 0.03;  // Share of the axis beyond its ends, so that marks at the edge do not touch it.
constexpr int kNumColours = 7;    // Of the style sheet: .s0 to .s6.
constexpr const char* kShapes[] = {
    "M-4.2 0a4.2 4.2 0 1 0 8.4 0a4.2 4.2 0 1 0 -8.4 0Z",                                                    // circle
    "M0 -5L4.8 3.6H-4.8Z",                                                                                  // triangle
    "M-3.8 -3.8H3.8V3.8H-3.8Z",                                                                             // square
    "M0 -5.2L5.2 0L0 5.2L-5.2 0Z",                                                                          // diamond
    "M0 5L4.8 -3.6H-4.8Z",                                                                                  // triangle on its tip
    "M-5 -1.6H-1.6V-5H1.6V-1.6H5V1.6H1.6V5H-1.6V1.6H-5Z",                                                   // plus
    "M-4.7 -2.9L-2.9 -4.7L0 -1.8L2.9 -4.7L4.7 -2.9L1.8 0L4.7 2.9L2.9 4.7L0 1.8L-2.9 4.7L-4.7 2.9L-1.8 0Z",  // cross
    "M-2.6 -4.5H2.6L5.2 0L2.6 4.5H-2.6L-5.2 0Z",                                                            // hexagon
};
constexpr int kNumShapes = static_cast<int>(std::size(kShapes));

bool is_logarithmic(const PlotAxis& axis) { return axis.scale != PlotAxis::Scale::kLinear; }
bool fits(double value, const PlotAxis& axis) { return std::isfinite(value) && (!is_logarithmic(axis) || value > 0); }
bool is_line(const PlotSeries& series) { return series.kind == PlotSeries::Kind::kCurve || series.kind == PlotSeries::Kind::kDashed; }

std::string colour_class(int look) { return look < 0 ? "s-grey" : "s" + std::to_string(look % kNumColours); }
std::string shape_reference(int look) { return "#k" + std::to_string(look < 0 ? 0 : look % kNumShapes); }

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void add(double value, const PlotAxis& axis) {
    if (!fits(value, axis)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

void add_marks(const StudyChart& chart, bool vertical, Range& range) {
  for (const PlotSeries& series : chart.series) {
    if (is_line(series)) continue;
    for (const Mark& mark : series.marks) {
      if (!is_drawn(mark, chart)) continue;
      range.add(vertical ? mark.y : mark.x, vertical ? chart.y : chart.x);
      if (vertical && mark.bar) range.add(mark.bar->first, chart.y), range.add(mark.bar->second, chart.y);
    }
  }
}

Axis make_axis(const StudyChart& chart, bool vertical) {
  const PlotAxis& wanted = vertical ? chart.y : chart.x;
  Range range;
  if (wanted.range) range = {wanted.range->first, wanted.range->second};
  else add_marks(chart, vertical, range);
  const bool is_small = chart.size == StudyChart::Size::kSmall;
  const int num_ticks = is_small ? 4 : chart.size == StudyChart::Size::kWide ? 10 : 6;
  Axis axis;
  if (wanted.scale == PlotAxis::Scale::kLog2) axis = log2_axis(range.low, range.high, num_ticks);
  else if (wanted.scale == PlotAxis::Scale::kLog10) axis = logarithmic_axis(range.low, range.high);
  else axis = linear_axis(range.low, range.high, is_small ? 3 : 5);
  if (axis.logarithmic) {
    const double factor = std::pow(axis.high / axis.low, kMargin);
    axis.low /= factor;
    axis.high *= factor;
  } else {
    const double margin = kMargin * (axis.high - axis.low);
    axis.low -= margin;
    axis.high += margin;
  }
  // On a logarithmic axis of a small panel every second label would overlap the next one.
  for (size_t i = 0; i < axis.ticks.size(); ++i) axis.ticks[i].minor = !vertical && axis.ticks.size() > (is_small ? 3 : 5) && i % 2 == 1;
  return axis;
}

struct Frame {
  Axis x, y;
  double height;

  std::string left(double value) const { return coordinate(100 * x.fraction(value), 2) + "%"; }
  double top(double value) const { return height * (1 - std::clamp(y.fraction(value), 0.0, 1.0)); }
};

std::string axes(const StudyChart& chart, const Frame& frame) {
  std::string out;
  for (const Tick& tick : frame.y.ticks) {
    const std::string place = coordinate(frame.top(tick.value));
    out += element("line", {{"class", "grid"}, {"x1", "0"}, {"x2", "100%"}, {"y1", place}, {"y2", place}});
    out += element("text", {{"x", "-8"}, {"y", place}, {"dy", ".35em"}, {"text-anchor", "end"}}, escape_html(tick.label));
  }
  const std::string bottom = coordinate(frame.height);
  for (const Tick& tick : frame.x.ticks) {
    const std::string left = frame.left(tick.value);
    out += element("line", {{"class", "grid"}, {"x1", left}, {"x2", left}, {"y1", "0"}, {"y2", bottom}});
    out += element("text",
                   {{"x", left}, {"y", coordinate(frame.height + 18)}, {"text-anchor", "middle"}, {"class", tick.minor ? "minor" : ""}},
                   escape_html(tick.label));
  }
  out += element("line", {{"class", "base"}, {"x1", "0"}, {"x2", "100%"}, {"y1", bottom}, {"y2", bottom}});
  out += element("text", {{"x", "100%"}, {"y", coordinate(frame.height + 35)}, {"text-anchor", "end"}, {"class", "axis"}},
                 escape_html(chart.x.label));
  return out + element("text", {{"x", "0"}, {"y", "-9"}, {"class", "axis"}}, escape_html(chart.y.label)) + "\n";
}

std::string line_of(const PlotSeries& series, const StudyChart& chart, const Frame& frame) {
  std::string data;
  for (const Mark& mark : series.marks) {
    if (!is_drawn(mark, chart)) continue;
    const double across = 1000 * std::clamp(frame.x.fraction(mark.x), -1.0, 2.0);
    const double down = 1000 * (1 - std::clamp(frame.y.fraction(mark.y), -1.0, 2.0));
    data += (data.empty() ? "M" : "L") + coordinate(across) + " " + coordinate(down);
  }
  if (data.empty()) return "";
  const char* kind = series.kind == PlotSeries::Kind::kDashed ? " dashed" : series.kind == PlotSeries::Kind::kJoined ? " joined" : "";
  return element("path", {{"class", colour_class(series.look) + kind}, {"d", data}});
}

std::string lines(const StudyChart& chart, const Frame& frame) {
  std::string paths;
  for (const PlotSeries& series : chart.series) {
    if (series.kind != PlotSeries::Kind::kMarks) paths += line_of(series, chart, frame);
  }
  return "<svg width=\"100%\" height=\"" + coordinate(frame.height) +
         "\" viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\" aria-hidden=\"true\">" + paths + "</svg>\n";
}

std::string upright(const Upright& line, const Frame& frame, int row) {
  std::string out;
  const double place = 100 * frame.x.fraction(line.at);
  if (line.interval && fits(line.interval->first, {"", PlotAxis::Scale::kLog2}) && line.interval->second > 0) {
    const double low = std::clamp(100 * frame.x.fraction(line.interval->first), 0.0, 100.0);
    const double high =
        std::isfinite(line.interval->second) ? std::clamp(100 * frame.x.fraction(line.interval->second), low, 100.0) : 100.0;
    out += element("rect", {{"class", "band"},
                            {"x", coordinate(low, 2) + "%"},
                            {"width", coordinate(std::max(high - low, 0.3), 2) + "%"},
                            {"y", "0"},
                            {"height", coordinate(frame.height)}});
  }
  if (place < 0 || place > 100) return out;
  const std::string left = coordinate(place, 2) + "%";
  const bool turns = place > 62;
  out += element("line", {{"class", "upright"}, {"x1", left}, {"x2", left}, {"y1", "0"}, {"y2", coordinate(frame.height)}});
  return out + element("text",
                       {{"class", "upright-name"},
                        {"x", left},
                        {"y", coordinate(14 + 16 * row)},
                        {"dx", turns ? "-5" : "5"},
                        {"text-anchor", turns ? "end" : "start"}},
                       escape_html(line.name));
}

std::string words_of(const Mark& mark) {
  std::string out;
  for (const Field& field : mark.fields) {
    if (!out.empty()) out += "\n";
    out += field.name + ": " + field.text;
  }
  return out;
}

std::string marks(const StudyChart& chart, const Frame& frame) {
  std::string bars, points;
  for (const PlotSeries& series : chart.series) {
    if (is_line(series)) continue;
    const std::string colour = colour_class(series.look);
    for (const Mark& mark : series.marks) {
      if (!is_drawn(mark, chart)) continue;
      const std::string left = frame.left(mark.x);
      if (mark.bar && !std::isnan(mark.bar->first) && !std::isnan(mark.bar->second)) {
        const bool is_open = std::isinf(mark.bar->second);
        bars += element("line", {{"class", "bar " + colour + (is_open ? " open" : "")},
                                 {"x1", left},
                                 {"x2", left},
                                 {"y1", coordinate(frame.top(mark.bar->first))},
                                 {"y2", coordinate(is_open ? 0 : frame.top(mark.bar->second))}});
      }
      points += element("use",
                        {{"class", "mark " + colour + (mark.hollow ? " hollow" : "")},
                         {"href", shape_reference(series.look)},
                         {"x", left},
                         {"y", coordinate(frame.top(mark.y))},
                         {"role", "img"}},
                        element("title", {}, escape_html((series.name.empty() ? "" : series.name + "\n") + words_of(mark))));
    }
  }
  return bars + "\n" + points;
}

double height_of(const StudyChart& chart) {
  if (chart.size == StudyChart::Size::kWide) return 360;
  return chart.size == StudyChart::Size::kHalf ? 260 : 150;
}

/// 256, 1/16, 2^20.
std::string power_of_two(int power) {
  if (std::abs(power) >= 20) return "2^" + std::to_string(power);
  return power >= 0 ? with_commas(int64_t{1} << power) : "1/" + with_commas(int64_t{1} << -power);
}

std::string note_below(const std::string& note) { return note.empty() ? "" : "<p class=\"note-below\">" + escape_html(note) + "</p>"; }

}  // namespace

std::string plain_number(double value, int digits) {
  const bool is_whole = std::abs(value) < 1e12 && std::round(value) == value;
  return is_whole ? with_commas(std::llround(value)) : significant(value, digits);
}

Field number_field(const std::string& name, double value, int digits) {
  if (!std::isfinite(value)) return {name, significant(value, digits), std::isinf(value) ? (value > 0 ? "inf" : "-inf") : ""};
  char exact[40];
  char* end = std::to_chars(exact, exact + sizeof exact, value).ptr;  // The shortest text that reads back the same.
  return {name, plain_number(value, digits), std::string(exact, static_cast<size_t>(end - exact))};
}

Field text_field(const std::string& name, const std::string& text) { return {name, text, text}; }

bool is_drawn(const Mark& mark, const StudyChart& chart) { return fits(mark.x, chart.x) && fits(mark.y, chart.y); }

std::optional<std::pair<double, double>> range_of_marks(const std::vector<StudyChart>& panels, bool vertical) {
  Range range;
  for (const StudyChart& chart : panels) add_marks(chart, vertical, range);
  if (range.low > range.high) return std::nullopt;
  return std::pair(range.low, range.high);
}

Axis log2_axis(double low, double high, int num_ticks) {
  low = std::clamp(low, 1e-12, 1e18);
  high = std::clamp(high, low, 1e18);
  const int first = static_cast<int>(std::floor(std::log2(low) + 1e-9));
  const int last = std::max(first + 1, static_cast<int>(std::ceil(std::log2(high) - 1e-9)));
  // Whole octaves would leave much room empty: the ends are the values themselves, the ticks the powers between.
  Axis axis;
  axis.logarithmic = true;
  axis.low = std::min(low, high / 1.5);
  axis.high = high;
  const int every = std::max(1, (last - first + num_ticks - 1) / std::max(num_ticks, 1));
  for (int power = first; power <= last; power += 1) {
    const double value = std::exp2(power);
    const bool is_inside = value >= axis.low * 0.97 && value <= axis.high * 1.03;
    if (!is_inside || ((power % every) + every) % every != 0) continue;
    axis.ticks.push_back({value, power_of_two(power), false});
  }
  if (axis.ticks.empty()) axis.ticks.push_back({low, significant(low, 3), false});
  return axis;
}

std::string legend_of(const std::vector<PlotSeries>& series) {
  std::string out;
  for (const PlotSeries& one : series) {
    if (!one.in_legend || one.name.empty()) continue;
    const char* line = one.kind == PlotSeries::Kind::kDashed ? "dashed" : "";
    const std::string key = is_line(one) ? element("line", {{"x1", "0"}, {"x2", "18"}, {"y1", "6"}, {"y2", "6"}, {"class", line}})
                                         : element("use", {{"class", "mark"}, {"href", shape_reference(one.look)}, {"x", "9"}, {"y", "6"}});
    out += element("li", {{"class", colour_class(one.look)}},
                   "<svg width=\"18\" height=\"12\" aria-hidden=\"true\">" + key + "</svg>" + escape_html(one.name));
  }
  return out.empty() ? "" : "<ul class=\"legend\">" + out + "</ul>";
}

std::string mark_shapes() {
  std::string out;
  for (int i = 0; i < kNumShapes; ++i) out += element("path", {{"id", "k" + std::to_string(i)}, {"d", kShapes[i]}});
  return "<svg width=\"0\" height=\"0\" class=\"shapes\" aria-hidden=\"true\"><defs>" + out + "</defs></svg>\n";
}

std::string study_chart(const StudyChart& chart) {
  const char* sizes[] = {"chart study wide", "chart study", "chart study small"};
  const std::string head =
      "<figcaption><h3>" + escape_html(chart.title) + "</h3>" + (chart.has_legend ? legend_of(chart.series) : "") + "</figcaption>\n";
  const std::string figure_class = sizes[static_cast<int>(chart.size)];
  if (!range_of_marks({chart}, false)) {
    return element("figure", {{"class", figure_class}}, head + "<p class=\"note-below\">No point to show.</p>" + note_below(chart.note)) +
           "\n";
  }
  const Frame frame{make_axis(chart, false), make_axis(chart, true), height_of(chart)};
  std::string bands;
  for (size_t i = 0; i < chart.uprights.size(); ++i) bands += upright(chart.uprights[i], frame, static_cast<int>(i));
  const std::string title = chart.id + "-title", description = chart.id + "-desc";
  const std::string plot = element("svg",
                                   {{"role", "group"},
                                    {"aria-labelledby", title},
                                    {"aria-describedby", chart.description.empty() ? "" : description},
                                    {"height", coordinate(frame.height)}},
                                   element("title", {{"id", title}}, escape_html(chart.title)) +
                                       element("desc", {{"id", description}}, escape_html(chart.description)) + "\n" + axes(chart, frame) +
                                       bands + lines(chart, frame) + marks(chart, frame));
  return element("figure", {{"class", figure_class}}, head + "<div class=\"plot\">" + plot + "</div>" + note_below(chart.note)) + "\n";
}

}  // namespace cohort::report
