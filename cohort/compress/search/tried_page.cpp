// A page with everything that a search tried: error against bytes, the Pareto front as a line, and a table.

#include <algorithm>
#include <cmath>
#include <map>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/compress/search/compression_search.h"
#include "cohort/report/draw/chart.h"
#include "cohort/report/draw/page.h"

namespace cohort {
namespace {

using report::Mark;
using report::PlotSeries;

std::string with_two_digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

Mark mark_of(const TriedCompression& one) {
  const MeasuredModel& model = *one.measured;
  Mark mark{.x = static_cast<double>(model.bytes), .y = 100 * model.error, .bar = {}, .hollow = !one.fits, .fields = {}};
  mark.fields = {report::text_field("model", one.model),
                 report::text_field("way", one.way),
                 report::number_field("error %", 100 * model.error),
                 report::number_field("bytes", static_cast<double>(model.bytes)),
                 report::number_field("ms at batch 1", 1000 * model.seconds_batch_1),
                 report::number_field("ms at batch 64", 1000 * model.seconds_batch_64)};
  return mark;
}

/// A series a model, and the front as a dashed line.
std::vector<PlotSeries> series_of(const std::vector<TriedCompression>& tried) {
  std::vector<std::string> models;
  std::map<std::string, PlotSeries> of_model;
  PlotSeries front{.name = "Pareto front", .look = PlotSeries::kGrey, .kind = PlotSeries::Kind::kDashed};
  for (const TriedCompression& one : tried) {
    if (!one.measured) continue;
    if (!of_model.contains(one.model)) models.push_back(one.model);
    of_model[one.model].marks.push_back(mark_of(one));
    if (one.is_on_front) front.marks.push_back(mark_of(one));
  }
  std::sort(front.marks.begin(), front.marks.end(), [](const Mark& a, const Mark& b) { return a.x < b.x; });
  std::vector<PlotSeries> all;
  for (size_t i = 0; i < models.size(); ++i) {
    PlotSeries series = of_model[models[i]];
    series.name = models[i];
    series.look = static_cast<int>(i);
    all.push_back(std::move(series));
  }
  all.push_back(std::move(front));
  return all;
}

std::string table_of(const std::vector<TriedCompression>& tried, std::optional<size_t> taken) {
  report::Table table{.columns = {{"model"}, {"way"}, {"error", true}, {"file", true}, {"1 sample", true}, {"64 samples", true}, {""}},
                      .rows = {}};
  for (size_t i = 0; i < tried.size(); ++i) {
    const TriedCompression& one = tried[i];
    std::vector<std::string> row = {report::escape_html(one.model), report::escape_html(one.way)};
    if (one.measured)
      row.insert(row.end(), {with_two_digits(100 * one.measured->error) + " %", human_bytes(one.measured->bytes),
                             human_seconds(one.measured->seconds_batch_1), human_seconds(one.measured->seconds_batch_64)});
    else row.insert(row.end(), {"", "", "", ""});
    row.push_back(!one.measured     ? report::escape_html(one.reason)
                  : taken == i      ? "<strong>taken</strong>"
                  : one.is_on_front ? "on the front"
                                    : "");
    table.rows.push_back(std::move(row));
  }
  return report::table(table, "everything that was tried");
}

}  // namespace

std::string tried_page(const std::vector<TriedCompression>& tried, std::optional<size_t> taken, const std::string& title) {
  report::StudyChart chart{.id = "tried", .title = "Error against size"};
  chart.x = {"bytes of the file", report::PlotAxis::Scale::kLog2, std::nullopt};
  chart.y.label = "error on the validation data, %";
  chart.size = report::StudyChart::Size::kWide;
  chart.series = series_of(tried);
  chart.note = "Hollow: outside of the limits. The dashed line joins those that no other beats in both.";
  chart.description = concat(tried.size(), " ways to make a model smaller, their error against the bytes of their files.");
  const std::string body =
      "<header>\n<div class=\"top\"><span class=\"brand\">Cohort</span><span>compression</span></div>\n<h1>" + report::escape_html(title) +
      "</h1>\n</header>\n" + report::mark_shapes() + "<main>\n" +
      report::section("search", "Everything that was tried", "", report::study_chart(chart) + "\n" + table_of(tried, taken)) + "</main>\n";
  return report::study_document(title, body);
}

}  // namespace cohort
