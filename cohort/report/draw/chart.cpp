// Plots keep their text readable at any width: the outer <svg> has no viewBox, so its units are pixels. Vertical positions are pixels and
// horizontal ones percentages of the width, for labels, grid and marks. Paths do not support percentages, so lines are in an inner <svg> of
// 1000 x 1000 units that is stretched over the plot (preserveAspectRatio="none") with strokes that do not scale; it also clips them at the
// edges. Marks of points are <use> elements: shapes are defined once per page, and colour and fill are inherited.

#include "cohort/report/draw/chart.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>

#include "cohort/base/statistics.h"
#include "cohort/report/draw/format.h"
#include "cohort/report/draw/page.h"

namespace cohort::report {
namespace {

constexpr size_t kMaxPoints = 600;
constexpr size_t kMaxDots = 40;
constexpr size_t kMaxCheckpoints = 60;
constexpr double kOutlierShare = 0.01;
constexpr double kOutlierStretch = 2;  // Outliers are clipped where they would make the plot this many times as high.
constexpr double kTallPixels = 300, kLowPixels = 200;

constexpr double kMargin = 0.03;  // Margin as a share of the axis, so that marks do not touch the edges.
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

// --- The frame of both kinds of charts.

bool can_show(double value, bool logarithmic) { return std::isfinite(value) && (!logarithmic || value > 0); }

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

struct Frame {
  bool is_of_points = false;  ///< A StudyChart: with a grid and a name on both axes.
  Axis x, y;
  double height = 0;

  std::string left(double value) const { return coordinate(100 * x.fraction(value), 2) + "%"; }
  double top(double value) const { return height * (1 - std::clamp(y.fraction(value), 0.0, 1.0)); }
};

std::string axes(const Frame& frame, const std::string& x_label, const std::string& y_label, const std::string& unit = "") {
  std::string out;
  for (const Tick& tick : frame.y.ticks) {
    const std::string place = coordinate(frame.top(tick.value));
    out += element("line", {{"class", "grid"}, {"x1", "0"}, {"x2", "100%"}, {"y1", place}, {"y2", place}});
    out += element("text", {{"x", "-8"}, {"y", place}, {"dy", ".35em"}, {"text-anchor", "end"}},
                   escape_html(tick.label + (unit.empty() ? "" : " " + unit)));
  }
  const std::string bottom = coordinate(frame.height);
  const std::string base = element("line", {{"class", "base"}, {"x1", "0"}, {"x2", "100%"}, {"y1", bottom}, {"y2", bottom}});
  if (!frame.is_of_points) out += base;
  for (const Tick& tick : frame.x.ticks) {
    const double percent = 100 * frame.x.fraction(tick.value);
    if (!frame.is_of_points && (percent < -0.01 || percent > 100.01)) continue;
    const std::string left = frame.left(tick.value);
    if (frame.is_of_points) out += element("line", {{"class", "grid"}, {"x1", left}, {"x2", left}, {"y1", "0"}, {"y2", bottom}});
    out += element("text",
                   {{"x", left},
                    {"y", coordinate(frame.height + (frame.is_of_points ? 18 : 20))},
                    {"text-anchor", "middle"},
                    {"class", tick.minor ? "minor" : ""}},
                   escape_html(tick.label));
  }
  if (frame.is_of_points) out += base;
  out += element("text",
                 {{"x", "100%"},
                  {"y", coordinate(frame.height + (frame.is_of_points ? 35 : 36))},
                  {"text-anchor", "end"},
                  {"class", frame.is_of_points ? "axis" : ""}},
                 escape_html(x_label));
  if (frame.is_of_points) out += element("text", {{"x", "0"}, {"y", "-9"}, {"class", "axis"}}, escape_html(y_label));
  return out + "\n";
}

/// "M0 12.5L3 14"; a gap begins a new subpath.
std::string path_data(const Curve& curve, const Frame& frame) {
  std::string out;
  bool pen_is_down = false;
  for (const Point& point : curve) {
    if (!can_show(point.y, frame.y.logarithmic)) {
      pen_is_down = false;
      continue;
    }
    // Positions far outside the plot are clamped, to avoid huge coordinates.
    const double across = std::clamp(frame.x.fraction(point.x), -1.0, 2.0), up = std::clamp(frame.y.fraction(point.y), -1.0, 2.0);
    out += (pen_is_down ? "L" : "M") + coordinate(1000 * across) + " " + coordinate(1000 * (1 - up));
    pen_is_down = true;
  }
  return out;
}

std::string stretched(const std::string& paths, const Frame& frame) {
  return "<svg width=\"100%\" height=\"" + coordinate(frame.height) + "\" viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\"" +
         (frame.is_of_points ? " aria-hidden=\"true\"" : "") + ">" + paths + "</svg>\n";
}

std::string note_below(const std::string& note) { return note.empty() ? "" : "<p class=\"note-below\">" + escape_html(note) + "</p>"; }

std::string figure_element(const std::string& css_class, const std::string& title, const std::string& legend, const std::string& content) {
  return element("figure", {{"class", css_class}},
                 "<figcaption><h3>" + escape_html(title) + "</h3>" + legend + "</figcaption>\n" + content) +
         "\n";
}

std::string plot_box(const std::string& svg) { return "<div class=\"plot\">" + svg + "</div>"; }

// --- Curves.

/// A number with the precision that the script needs.
std::string exact(double value) {
  char out[40];
  std::snprintf(out, sizeof out, "%.12g", value);
  return out;
}

/// Covers all thick series; of thin ones all but the outermost percent, where that would flatten the rest.
Axis vertical_axis(const LineChart& chart) {
  Range range;
  for (const Series& series : chart.series) {
    std::vector<double> values;
    for (const Point& point : series.points) {
      if (can_show(point.y, chart.logarithmic)) values.push_back(point.y);
    }
    if (values.empty()) continue;
    const double lowest = quantile(values, 0), highest = quantile(values, 1);
    const double low = quantile(values, kOutlierShare), high = quantile(values, 1 - kOutlierShare);
    const bool has_outliers = series.thin && values.size() >= 50 && highest - lowest > kOutlierStretch * (high - low);
    range.add(has_outliers ? low : lowest);
    range.add(has_outliers ? high : highest);
  }
  if (chart.logarithmic) return logarithmic_axis(range.low, range.high);
  // The axis begins at 0 where that costs little room.
  if (chart.from_zero || (range.low > 0 && range.low < 0.35 * range.high)) range.add(0);
  return linear_axis(range.low, range.high, chart.wide ? 6 : 4);
}

std::string curves(const LineChart& chart, const Frame& frame) {
  std::string paths, dots;
  for (const Series& series : chart.series) {
    Curve curve = series.points;
    if (frame.y.logarithmic) {
      for (Point& point : curve) {
        if (point.y <= 0) point.y = std::nan("");
      }
    }
    curve = downsample(curve, kMaxPoints);
    const std::string colour = series.colour + (series.thin ? " thin" : "");
    const auto num_shown =
        std::count_if(curve.begin(), curve.end(), [&](const Point& point) { return can_show(point.y, frame.y.logarithmic); });
    paths += element("path", {{"class", colour}, {"data-name", series.name}, {"d", path_data(curve, frame)}});
    // A curve of one point has no length and needs a dot.
    if (!(series.dots && curve.size() <= kMaxDots) && num_shown != 1) continue;
    for (const Point& point : curve) {
      if (!can_show(point.y, frame.y.logarithmic)) continue;
      dots += element("circle", {{"class", series.colour + (num_shown == 1 ? " lone" : "")},
                                 {"cx", frame.left(point.x)},
                                 {"cy", coordinate(frame.top(point.y))},
                                 {"r", "3"}});
    }
  }
  return stretched(paths, frame) + dots;
}

std::string markers(const LineChart& chart, const Frame& frame) {
  size_t num_checkpoints = 0;
  for (const Marker& marker : chart.markers) num_checkpoints += marker.kind == Marker::Kind::kCheckpoint;
  const size_t every = (num_checkpoints + kMaxCheckpoints - 1) / kMaxCheckpoints;
  std::string out;
  size_t checkpoint = 0;
  double last_label = -100;
  for (const Marker& marker : chart.markers) {
    const double percent = 100 * frame.x.fraction(marker.x);
    if (percent < -0.01 || percent > 100.01) continue;
    const std::string left = coordinate(percent, 2) + "%", title = element("title", {}, escape_html(marker.label));
    if (marker.kind == Marker::Kind::kResume) {
      out += element("line", {{"class", "m-resume"}, {"x1", left}, {"x2", left}, {"y1", "0"}, {"y2", coordinate(frame.height)}}, title);
      if (percent - last_label < 18) continue;  // Labels side by side would overlap.
      last_label = percent;
      out += element("text",
                     {{"class", "resumed"},
                      {"x", left},
                      {"y", "10"},
                      {"dx", percent > 80 ? "-5" : "5"},
                      {"text-anchor", percent > 80 ? "end" : "start"}},
                     "resumed");
    } else if (checkpoint++ % every == 0) {
      out += element("svg", {{"x", left}, {"y", coordinate(frame.height)}, {"overflow", "visible"}, {"width", "1"}, {"height", "1"}},
                     element("path", {{"class", "m-checkpoint"}, {"d", "M0 0L-4 6L4 6Z"}}, title));
    }
  }
  return out;
}

std::string curves_legend(const LineChart& chart) {
  std::string out;
  for (const Series& series : chart.series) {
    out += element("li", {{"class", series.colour + (series.thin ? " thin" : "")}},
                   escape_html(series.name) + (series.legend_value.empty() ? "" : " <b>" + escape_html(series.legend_value) + "</b>"));
  }
  const auto has = [&](Marker::Kind kind) {
    return std::any_of(chart.markers.begin(), chart.markers.end(), [kind](const Marker& marker) { return marker.kind == kind; });
  };
  if (has(Marker::Kind::kCheckpoint)) out += "<li class=\"m-checkpoint\">checkpoint</li>";
  if (has(Marker::Kind::kResume)) out += "<li class=\"m-resume\">resumed</li>";
  return "<ul class=\"legend\">" + out + "</ul>";
}

std::string outliers_note(const LineChart& chart, const Axis& y) {
  int64_t num_outside = 0;
  for (const Series& series : chart.series) {
    for (const Point& point : series.points) {
      if (!can_show(point.y, y.logarithmic)) continue;
      const double fraction = y.fraction(point.y);
      num_outside += fraction < -1e-9 || fraction > 1 + 1e-9;
    }
  }
  if (num_outside == 0) return "";
  return note_below(plural(num_outside, "outlier") + (num_outside == 1 ? " lies" : " lie") + " outside of the plot.");
}

// --- Points.

bool is_logarithmic(const PlotAxis& axis) { return axis.scale != PlotAxis::Scale::kLinear; }
bool fits(double value, const PlotAxis& axis) { return can_show(value, is_logarithmic(axis)); }
/// Whether the chart's axes can show the point.
bool is_drawn(const Mark& mark, const StudyChart& chart) { return fits(mark.x, chart.x) && fits(mark.y, chart.y); }
bool is_line(const PlotSeries& series) { return series.kind == PlotSeries::Kind::kCurve || series.kind == PlotSeries::Kind::kDashed; }

std::string colour_class(int look) { return look < 0 ? "s-grey" : "s" + std::to_string(look % kNumColours); }
std::string shape_reference(int look) { return "#k" + std::to_string(look < 0 ? 0 : look % kNumShapes); }

void add_marks(const StudyChart& chart, bool vertical, Range& range) {
  for (const PlotSeries& series : chart.series) {
    if (is_line(series)) continue;
    for (const Mark& mark : series.marks) {
      if (!is_drawn(mark, chart)) continue;
      range.add(vertical ? mark.y : mark.x);
      if (!vertical || !mark.bar) continue;
      for (const double end : {mark.bar->first, mark.bar->second})
        if (fits(end, chart.y)) range.add(end);
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
  // Every second label is minor where labels would overlap.
  for (size_t i = 0; i < axis.ticks.size(); ++i) axis.ticks[i].minor = !vertical && axis.ticks.size() > (is_small ? 3 : 5) && i % 2 == 1;
  return axis;
}

std::string lines(const StudyChart& chart, const Frame& frame) {
  std::string paths;
  for (const PlotSeries& series : chart.series) {
    if (series.kind == PlotSeries::Kind::kMarks) continue;
    Curve curve;
    for (const Mark& mark : series.marks) {
      if (is_drawn(mark, chart)) curve.push_back({mark.x, mark.y});
    }
    if (curve.empty()) continue;
    const char* kind = series.kind == PlotSeries::Kind::kDashed ? " dashed" : series.kind == PlotSeries::Kind::kJoined ? " joined" : "";
    paths += element("path", {{"class", colour_class(series.look) + kind}, {"d", path_data(curve, frame)}});
  }
  return stretched(paths, frame);
}

std::string vertical_line(const VerticalLine& line, const Frame& frame, int row) {
  std::string out;
  const double percent = 100 * frame.x.fraction(line.at);
  if (line.interval && can_show(line.interval->first, /*logarithmic=*/true) && line.interval->second > 0) {
    const double low = std::clamp(100 * frame.x.fraction(line.interval->first), 0.0, 100.0);
    const double high =
        std::isfinite(line.interval->second) ? std::clamp(100 * frame.x.fraction(line.interval->second), low, 100.0) : 100.0;
    out += element("rect", {{"class", "band"},
                            {"x", coordinate(low, 2) + "%"},
                            {"width", coordinate(std::max(high - low, 0.3), 2) + "%"},
                            {"y", "0"},
                            {"height", coordinate(frame.height)}});
  }
  if (percent < 0 || percent > 100) return out;
  const std::string left = coordinate(percent, 2) + "%";
  const bool turns = percent > 62;
  out += element("line", {{"class", "upright"}, {"x1", left}, {"x2", left}, {"y1", "0"}, {"y2", coordinate(frame.height)}});
  return out + element("text",
                       {{"class", "upright-name"},
                        {"x", left},
                        {"y", coordinate(14 + 16 * row)},
                        {"dx", turns ? "-5" : "5"},
                        {"text-anchor", turns ? "end" : "start"}},
                       escape_html(line.name));
}

std::string fields_text(const Mark& mark) {
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
                        element("title", {}, escape_html((series.name.empty() ? "" : series.name + "\n") + fields_text(mark))));
    }
  }
  return bars + "\n" + points;
}

double height_of(const StudyChart& chart) {
  if (chart.size == StudyChart::Size::kWide) return 360;
  return chart.size == StudyChart::Size::kHalf ? 260 : 150;
}

}  // namespace

std::string line_chart(const LineChart& full) {
  LineChart chart = full;
  std::erase_if(chart.series, [&](const Series& series) {
    return std::none_of(series.points.begin(), series.points.end(),
                        [&](const Point& point) { return can_show(point.y, chart.logarithmic); });
  });
  if (chart.series.empty()) return "";
  const Frame frame{.x = exact_axis(chart.x_low, chart.x_high, chart.wide ? 8 : 6),
                    .y = vertical_axis(chart),
                    .height = chart.wide ? kTallPixels : kLowPixels};
  const std::string title = chart.id + "-title";
  const std::string plot = element("svg",
                                   {{"role", "img"},
                                    {"aria-labelledby", title},
                                    {"height", coordinate(frame.height)},
                                    {"data-height", coordinate(frame.height)},
                                    {"data-x0", exact(frame.x.low)},
                                    {"data-x1", exact(frame.x.high)},
                                    {"data-y0", exact(frame.y.low)},
                                    {"data-y1", exact(frame.y.high)},
                                    {"data-log", frame.y.logarithmic ? "1" : ""},
                                    {"data-unit", chart.unit.empty() ? "" : " " + chart.unit}},
                                   element("title", {{"id", title}}, escape_html(chart.title + ". " + chart.description)) + "\n" +
                                       axes(frame, chart.x_label, "", chart.unit) + curves(chart, frame) + markers(chart, frame));
  return figure_element(chart.wide ? "chart wide" : "chart", chart.title, curves_legend(chart),
                        plot_box(plot) + outliers_note(chart, frame.y));
}

std::string stacked_bar(const std::vector<Part>& parts, double full_size, const std::string& label, const std::string& css_class) {
  std::string out = element("title", {}, escape_html(label));
  double begin = 0;
  for (const Part& part : parts) {
    if (!(part.size > 0) || !(full_size > 0)) continue;
    const double width = 100 * part.size / full_size;
    out += element("rect",
                   {{"class", part.colour}, {"x", coordinate(begin, 3) + "%"}, {"width", coordinate(width, 3) + "%"}, {"height", "100%"}});
    begin += width;
  }
  return element("svg", {{"class", css_class}, {"role", "img"}}, out);
}

std::string bar_rows(const std::vector<BarRow>& rows) {
  const auto length = [](const BarRow& row) {
    double sum = 0;
    for (const Part& part : row.parts) sum += std::isfinite(part.size) ? part.size : 0;
    return sum;
  };
  double longest = 0;
  for (const BarRow& row : rows) longest = std::max(longest, length(row));
  if (!(longest > 0)) return "";
  std::string out;
  for (const BarRow& row : rows)
    out += "<span>" + escape_html(row.name) + "</span>" +
           stacked_bar(row.parts, longest, row.label.empty() ? row.name + ": " + row.value : row.label, "stack") +
           "<span class=\"number\">" + escape_html(row.value) + "</span>\n";
  return "<div class=\"workers\">" + out + "</div>\n";
}

Field number_field(const std::string& name, double value, int digits) {
  if (!std::isfinite(value)) return {name, significant(value, digits), std::isinf(value) ? (value > 0 ? "inf" : "-inf") : ""};
  char exact[40];
  char* end = std::to_chars(exact, exact + sizeof exact, value).ptr;  // The shortest text that reads back the same.
  return {name, plain_number(value, digits), std::string(exact, static_cast<size_t>(end - exact))};
}

Field text_field(const std::string& name, const std::string& text) { return {name, text, text}; }

std::optional<std::pair<double, double>> range_of_marks(const std::vector<StudyChart>& panels, bool vertical) {
  Range range;
  for (const StudyChart& chart : panels) add_marks(chart, vertical, range);
  if (range.low > range.high) return std::nullopt;
  return std::pair(range.low, range.high);
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
  const std::string legend = chart.has_legend ? legend_of(chart.series) : "";
  const std::string figure_class = sizes[static_cast<int>(chart.size)];
  if (!range_of_marks({chart}, false)) {
    return figure_element(figure_class, chart.title, legend, note_below("No point to show.") + note_below(chart.note));
  }
  const Frame frame{.is_of_points = true, .x = make_axis(chart, false), .y = make_axis(chart, true), .height = height_of(chart)};
  std::string bands;
  for (size_t i = 0; i < chart.vertical_lines.size(); ++i) bands += vertical_line(chart.vertical_lines[i], frame, static_cast<int>(i));
  const std::string title = chart.id + "-title", description = chart.id + "-desc";
  const std::string plot = element("svg",
                                   {{"role", "group"},
                                    {"aria-labelledby", title},
                                    {"aria-describedby", chart.description.empty() ? "" : description},
                                    {"height", coordinate(frame.height)}},
                                   element("title", {{"id", title}}, escape_html(chart.title)) +
                                       element("desc", {{"id", description}}, escape_html(chart.description)) + "\n" +
                                       axes(frame, chart.x.label, chart.y.label) + bands + lines(chart, frame) + marks(chart, frame));
  return figure_element(figure_class, chart.title, legend, plot_box(plot) + note_below(chart.note));
}

}  // namespace cohort::report
