#pragma once
// Plots of a batch-size study: points that say which trial they are, lines between and through them, on linear and logarithmic axes. What a
// point says under the pointer is also its row in the plot's CSV (study_csv.cpp), so the two can not differ.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/report/draw/axis.h"

namespace cohort::report {

/// One thing that a point says.
struct Field {
  std::string name;
  std::string text;   ///< For people, rounded.
  std::string exact;  ///< For the CSV.
};
Field number_field(const std::string& name, double value, int digits = 4);
/// Whole numbers whole, with commas; others with that number of digits.
std::string plain_number(double value, int digits = 3);
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
/// Whether a point is drawn on such axes.
bool is_drawn(const Mark& mark, const StudyChart& chart);
/// Powers of two; no more than about `num_ticks` of them are labelled.
Axis log2_axis(double low, double high, int num_ticks);

/// A `figure`. Where no mark can be drawn it says so in a sentence.
std::string study_chart(const StudyChart& chart);
/// The shapes that charts use; once a page, before the first chart.
std::string mark_shapes();
/// An entry of a legend that several small panels share.
std::string legend_of(const std::vector<PlotSeries>& series);

}  // namespace cohort::report
