#pragma once
// Line plots as inline SVG that stretches with the page while its text keeps its size.

#include <string>
#include <vector>

#include "cohort/report/draw/curve.h"

namespace cohort::report {

struct Series {
  std::string name;
  std::string colour;  ///< A class of the style sheet: "c-train".
  Curve points;
  bool thin = false;         ///< Faint: raw values behind a smoothed curve.
  bool dots = false;         ///< A mark at each point.
  std::string legend_value;  ///< Behind the name in the legend, e.g. the last value.
};

struct Marker {
  enum class Kind { kCheckpoint, kResume } kind = Kind::kCheckpoint;
  double x = 0;
  std::string label;  ///< Shown on hover and to screen readers.
};

struct LineChart {
  std::string id;  ///< Unique on the page.
  std::string title;
  std::string description;  ///< One sentence for who cannot see the plot.
  std::string unit;         ///< Behind tick labels: "%" or "".
  std::string x_label = "step";
  std::vector<Series> series;
  std::vector<Marker> markers;
  double x_low = 0, x_high = 1;
  bool logarithmic = false;  ///< Points <= 0 are then gaps.
  bool from_zero = false;    ///< The vertical axis begins at 0.
  bool wide = false;         ///< Takes the whole width of the page, and is taller.
};

/// A `figure`. Series without a finite point are left out; "" where none is left. Curves are thinned to about 600 points, peaks kept;
/// single outliers of a thin series may lie above the plot, and a line below it then says how many.
std::string line_chart(const LineChart& chart);

/// One row of coloured parts, `full_size` being its whole width. `label` is its accessible title.
struct Part {
  std::string colour;
  double size = 0;
};
std::string stacked_bar(const std::vector<Part>& parts, double full_size, const std::string& label, const std::string& css_class);

}  // namespace cohort::report
