// How a plot keeps its text readable at any width: the outer <svg> has no viewBox, so its units are pixels. Heights are pixels and
// horizontal places are percentages of the width, which labels, grid and marks take as they are. Paths know no percentages, so the curves
// stand in an inner <svg> of 1000 x 1000 units that is stretched over the plot (preserveAspectRatio="none") with strokes that do not scale.

#include "cohort/report/draw/svg.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>

#include "cohort/base/statistics.h"
#include "cohort/report/draw/axis.h"
#include "cohort/report/draw/format.h"
#include "cohort/report/draw/page.h"

namespace cohort::report {
namespace {

constexpr size_t kMaxPoints = 600;
constexpr size_t kMaxDots = 40;
constexpr size_t kMaxCheckpoints = 60;
constexpr double kOutlierShare = 0.01;
constexpr double kOutlierStretch = 2;  // Outliers are cut off where they would make the plot this many times as high.
constexpr double kTallPixels = 300, kLowPixels = 200;

bool can_show(double y, bool logarithmic) { return std::isfinite(y) && (!logarithmic || y > 0); }

/// For the script: a number that reads back as it was, near enough for a screen.
std::string exact(double value) {
  char out[40];
  std::snprintf(out, sizeof out, "%.12g", value);
  return out;
}

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

/// All of what is drawn thick; of what is thin all but the outermost percent where that would flatten the rest.
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
  // A baseline of 0 costs little room where the values reach down to it almost.
  if (chart.from_zero || (range.low > 0 && range.low < 0.35 * range.high)) range.add(0);
  return linear_axis(range.low, range.high, chart.wide ? 6 : 4);
}

std::string axes(const LineChart& chart, const Axis& x, const Axis& y, double height) {
  std::string out;
  for (const Tick& tick : y.ticks) {
    const std::string place = coordinate(height * (1 - y.fraction(tick.value)));
    out += element("line", {{"class", "grid"}, {"x1", "0"}, {"x2", "100%"}, {"y1", place}, {"y2", place}});
    out += element("text", {{"x", "-8"}, {"y", place}, {"dy", ".35em"}, {"text-anchor", "end"}},
                   escape_html(tick.label + (chart.unit.empty() ? "" : " " + chart.unit)));
  }
  const std::string bottom = coordinate(height);
  out += element("line", {{"class", "base"}, {"x1", "0"}, {"x2", "100%"}, {"y1", bottom}, {"y2", bottom}});
  for (const Tick& tick : x.ticks) {
    const double place = 100 * x.fraction(tick.value);
    if (place < -0.01 || place > 100.01) continue;
    out += element("text",
                   {{"x", coordinate(place, 2) + "%"},
                    {"y", coordinate(height + 20)},
                    {"text-anchor", "middle"},
                    {"class", tick.minor ? "minor" : ""}},
                   escape_html(tick.label));
  }
  return out + element("text", {{"x", "100%"}, {"y", coordinate(height + 36)}, {"text-anchor", "end"}}, escape_html(chart.x_label)) + "\n";
}

/// "M0 12.5L3 14": a gap begins a new piece.
std::string path_data(const Curve& curve, const Axis& x, const Axis& y) {
  std::string out;
  bool pen_is_down = false;
  for (const Point& point : curve) {
    if (!can_show(point.y, y.logarithmic)) {
      pen_is_down = false;
      continue;
    }
    // Far outside of the plot any place is as good as another; huge coordinates are not.
    const double fraction = std::clamp(y.fraction(point.y), -1.0, 2.0);
    out += (pen_is_down ? "L" : "M") + coordinate(1000 * x.fraction(point.x)) + " " + coordinate(1000 * (1 - fraction));
    pen_is_down = true;
  }
  return out;
}

std::string curves(const LineChart& chart, const Axis& x, const Axis& y, double height) {
  std::string paths, dots;
  for (const Series& series : chart.series) {
    Curve curve = series.points;
    if (y.logarithmic) {
      for (Point& point : curve) {
        if (point.y <= 0) point.y = std::nan("");
      }
    }
    curve = downsample(curve, kMaxPoints);
    const std::string colour = series.colour + (series.thin ? " thin" : "");
    const auto num_shown = std::count_if(curve.begin(), curve.end(), [&](const Point& point) { return can_show(point.y, y.logarithmic); });
    paths += element("path", {{"class", colour}, {"data-name", series.name}, {"d", path_data(curve, x, y)}});
    // A curve of one point has no length: without a dot nobody would see it.
    if (!(series.dots && curve.size() <= kMaxDots) && num_shown != 1) continue;
    for (const Point& point : curve) {
      if (!can_show(point.y, y.logarithmic)) continue;
      dots += element("circle", {{"class", series.colour + (num_shown == 1 ? " lone" : "")},
                                 {"cx", coordinate(100 * x.fraction(point.x), 2) + "%"},
                                 {"cy", coordinate(height * (1 - std::clamp(y.fraction(point.y), 0.0, 1.0)))},
                                 {"r", "3"}});
    }
  }
  return "<svg width=\"100%\" height=\"" + coordinate(height) + "\" viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\">" + paths +
         "</svg>\n" + dots;
}

std::string markers(const LineChart& chart, const Axis& x, double height) {
  size_t num_checkpoints = 0;
  for (const Marker& marker : chart.markers) num_checkpoints += marker.kind == Marker::Kind::kCheckpoint;
  const size_t every = (num_checkpoints + kMaxCheckpoints - 1) / kMaxCheckpoints;
  std::string out;
  size_t checkpoint = 0;
  double last_label = -100;
  for (const Marker& marker : chart.markers) {
    const double place = 100 * x.fraction(marker.x);
    if (place < -0.01 || place > 100.01) continue;
    const std::string left = coordinate(place, 2) + "%", title = element("title", {}, escape_html(marker.label));
    if (marker.kind == Marker::Kind::kResume) {
      out += element("line", {{"class", "m-resume"}, {"x1", left}, {"x2", left}, {"y1", "0"}, {"y2", coordinate(height)}}, title);
      if (place - last_label < 18) continue;  // Labels side by side would overlap.
      last_label = place;
      out += element(
          "text",
          {{"class", "resumed"}, {"x", left}, {"y", "10"}, {"dx", place > 80 ? "-5" : "5"}, {"text-anchor", place > 80 ? "end" : "start"}},
          "resumed");
    } else if (checkpoint++ % every == 0) {
      out += element("svg", {{"x", left}, {"y", coordinate(height)}, {"overflow", "visible"}, {"width", "1"}, {"height", "1"}},
                     element("path", {{"class", "m-checkpoint"}, {"d", "M0 0L-4 6L4 6Z"}}, title));
    }
  }
  return out;
}

std::string legend(const LineChart& chart) {
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
  return "<p class=\"note-below\">" + plural(num_outside, "outlier") + (num_outside == 1 ? " lies" : " lie") + " outside of the plot.</p>";
}

}  // namespace

std::string line_chart(const LineChart& full) {
  LineChart chart = full;
  std::erase_if(chart.series, [&](const Series& series) {
    return std::none_of(series.points.begin(), series.points.end(),
                        [&](const Point& point) { return can_show(point.y, chart.logarithmic); });
  });
  if (chart.series.empty()) return "";
  const double height = chart.wide ? kTallPixels : kLowPixels;
  const Axis x = exact_axis(chart.x_low, chart.x_high, chart.wide ? 8 : 6);
  const Axis y = vertical_axis(chart);
  const std::string title = chart.id + "-title";
  const std::string plot = element("svg",
                                   {{"role", "img"},
                                    {"aria-labelledby", title},
                                    {"height", coordinate(height)},
                                    {"data-height", coordinate(height)},
                                    {"data-x0", exact(x.low)},
                                    {"data-x1", exact(x.high)},
                                    {"data-y0", exact(y.low)},
                                    {"data-y1", exact(y.high)},
                                    {"data-log", y.logarithmic ? "1" : ""},
                                    {"data-unit", chart.unit.empty() ? "" : " " + chart.unit}},
                                   element("title", {{"id", title}}, escape_html(chart.title + ". " + chart.description)) + "\n" +
                                       axes(chart, x, y, height) + curves(chart, x, y, height) + markers(chart, x, height));
  return element("figure", {{"class", chart.wide ? "chart wide" : "chart"}},
                 "<figcaption><h3>" + escape_html(chart.title) + "</h3>" + legend(chart) + "</figcaption>\n<div class=\"plot\">" + plot +
                     "</div>" + outliers_note(chart, y)) +
         "\n";
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

}  // namespace cohort::report
