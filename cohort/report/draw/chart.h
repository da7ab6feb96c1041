#pragma once
// Plots as inline SVG that stretches with the page while its text keeps its size: curves of a run, and points that say which trial or plan
// they are, with lines between and through them. What a point says under the pointer is also its row in the plot's CSV
// (study/study_csv.cpp), so the two can not differ.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/report/draw/axis.h"
#include "cohort/report/draw/curve.h"

namespace cohort::report {

// --- Curves.

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

// --- Points.

/// One thing that a point says.
struct Field {
  std::string name;
  std::string text;   ///< For people, rounded.
  std::string exact;  ///< For the CSV.
};
Field number_field(const std::string& name, double value, int digits = 4);
Field text_field(const std::string& name, const std::string& text);

struct Mark {
  double x = 0, y = 0;                           ///< Not drawn where either is not finite, or not above 0 on a logarithmic axis.
  std::optional<std::pair<double, double>> bar;  ///< Interval of y; infinite ends run out of the plot.
  bool hollow = false;                           ///< A bound, not proven, ...: the chart's note says what.
  std::vector<Field> fields;
};

struct PlotSeries {
  enum class Kind { kMarks, kJoined, kCurve, kDashed };  ///< kCurve, kDashed: a line alone, whose points are not for reading.
  std::string name;
  int look = 0;  ///< Colour and shape; any number from 0. kGrey: without a colour of its own.
  Kind kind = Kind::kMarks;
  std::vector<Mark> marks;
  bool in_legend = true;

  static constexpr int kGrey = -1;
};

/// An upright line with its interval, such as the end of a regime.
struct Upright {
  std::string name;
  double at = 0;
  std::optional<std::pair<double, double>> interval;
};

struct PlotAxis {
  enum class Scale { kLinear, kLog2, kLog10 };
  std::string label;
  Scale scale = Scale::kLinear;
  std::optional<std::pair<double, double>> range;  ///< To share between panels; default: that of the marks.
};

struct StudyChart {
  std::string id;           ///< Unique on the page.
  std::string title;        ///< Also the panel's name in the CSV.
  std::string description;  ///< One sentence for who cannot see the plot.
  PlotAxis x, y;
  std::vector<PlotSeries> series;
  std::vector<Upright> uprights;
  std::string note;  ///< Below the plot; may be empty.
  enum class Size { kWide, kHalf, kSmall } size = Size::kHalf;
  bool has_legend = true;
};

/// The range that all marks of some panels need on one axis; none where there is no mark.
std::optional<std::pair<double, double>> range_of_marks(const std::vector<StudyChart>& panels, bool vertical);

/// A `figure`. Where no mark can be drawn it says so in a sentence.
std::string study_chart(const StudyChart& chart);
/// The shapes that charts use; once a page, before the first chart.
std::string mark_shapes();
/// An entry of a legend that several small panels share.
std::string legend_of(const std::vector<PlotSeries>& series);

}  // namespace cohort::report
