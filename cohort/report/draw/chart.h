#pragma once
// Plots as inline SVG that scales with the page while its text keeps its size: curves of a run (LineChart), and points of a study or plan
// (StudyChart), whose fields are shown under the pointer and are the rows of the plot's CSV (study/study_csv.cpp).

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
  std::string colour;  ///< A CSS class: "c-train".
  Curve points;
  bool thin = false;         ///< Drawn faintly, for raw values behind a smoothed curve.
  bool dots = false;         ///< Draws a mark at each point.
  std::string legend_value;  ///< Shown behind the name in the legend, such as the last value.
};

struct Marker {
  enum class Kind { kCheckpoint, kResume } kind = Kind::kCheckpoint;
  double x = 0;
  std::string label;  ///< Shown on hover and to screen readers.
};

struct LineChart {
  std::string id;  ///< Unique on the page.
  std::string title;
  std::string description;  ///< One sentence for screen readers.
  std::string unit;         ///< Shown behind tick labels: "%" or "".
  std::string x_label = "step";
  std::vector<Series> series;
  std::vector<Marker> markers;
  double x_low = 0, x_high = 1;
  bool logarithmic = false;  ///< Points <= 0 become gaps.
  bool from_zero = false;    ///< The vertical axis begins at 0.
  bool wide = false;         ///< Takes the whole width of the page, and is taller.
};

/// A `figure`. Series without a finite point are omitted; "" where none remains. Curves are downsampled to about 600 points, keeping peaks;
/// outliers of a thin series may lie outside the plot, and a note then gives their number.
std::string line_chart(const LineChart& chart);

/// A bar of coloured parts; `full_size` is its whole width. `label` is its accessible title.
struct Part {
  std::string colour;
  double size = 0;
};
std::string stacked_bar(const std::vector<Part>& parts, double full_size, const std::string& label, const std::string& css_class);

/// A grid with one row per bar: name, bar, value. All bars have the scale of the longest; "" where all are empty.
struct BarRow {
  std::string name;
  std::vector<Part> parts;
  std::string value;       ///< Shown behind the bar.
  std::string label = {};  ///< Accessible title; default: name and value.
};
std::string bar_rows(const std::vector<BarRow>& rows);

// --- Points.

/// A named value of a point.
struct Field {
  std::string name;
  std::string text;   ///< Rounded, for the page.
  std::string exact;  ///< For the CSV.
};
Field number_field(const std::string& name, double value, int digits = 4);
Field text_field(const std::string& name, const std::string& text);

struct Mark {
  double x = 0, y = 0;                           ///< Not drawn where either is not finite, or not above 0 on a logarithmic axis.
  std::optional<std::pair<double, double>> bar;  ///< Interval of y; infinite ends extend out of the plot.
  bool hollow = false;                           ///< For values with a reservation, which the chart's note explains.
  std::vector<Field> fields;
};

struct PlotSeries {
  enum class Kind { kMarks, kJoined, kCurve, kDashed };  ///< kCurve, kDashed: a line without marks.
  std::string name;
  int look = 0;  ///< Colour and shape: any number from 0, or kGrey.
  Kind kind = Kind::kMarks;
  std::vector<Mark> marks;
  bool in_legend = true;

  static constexpr int kGrey = -1;
};

/// A vertical line with its interval, such as the end of a regime.
struct VerticalLine {
  std::string name;
  double at = 0;
  std::optional<std::pair<double, double>> interval;
};

struct PlotAxis {
  enum class Scale { kLinear, kLog2, kLog10 };
  std::string label;
  Scale scale = Scale::kLinear;
  std::optional<std::pair<double, double>> range;  ///< Default: that of the marks. Set to share an axis between panels.
};

struct StudyChart {
  std::string id;           ///< Unique on the page.
  std::string title;        ///< Also the panel's name in the CSV.
  std::string description;  ///< One sentence for screen readers.
  PlotAxis x, y;
  std::vector<PlotSeries> series;
  std::vector<VerticalLine> vertical_lines;
  std::string note;  ///< Below the plot; may be empty.
  enum class Size { kWide, kHalf, kSmall } size = Size::kHalf;
  bool has_legend = true;
};

/// The range of all marks of some panels on one axis; none without marks.
std::optional<std::pair<double, double>> range_of_marks(const std::vector<StudyChart>& panels, bool vertical);

/// A `figure`; a sentence where no mark can be drawn.
std::string study_chart(const StudyChart& chart);
/// The shapes that charts refer to; needed once per page, before the first chart.
std::string mark_shapes();
/// A legend of the series; one of several panels may share it.
std::string legend_of(const std::vector<PlotSeries>& series);

}  // namespace cohort::report
