// Search by enumeration: every way is tried on every model, then the Pareto front of (error, bytes) is found:
//   1. sort by bytes, then error; 2. walk through it: a model is on the front where its error is below that of all smaller ones.
// Cost: one compression a way; n log n for the front. Source: Kung, Luccio and Preparata 1975 (maxima of a set of vectors), two dimensions.
#include "cohort/compress/compression_search.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/report/draw/chart.h"
#include "cohort/report/draw/page.h"

namespace cohort {

bool within(const MeasuredModel& model, const CompressionLimits& limits) {
  // 1e-12: errors are ratios of counts.
  return (!limits.max_error || model.error <= *limits.max_error + 1e-12) && (!limits.max_bytes || model.bytes <= *limits.max_bytes);
}

std::vector<CompressionWay> compression_ways(const QuantiseRequest& common) {
  std::vector<CompressionWay> ways;
  const auto add = [&](const std::string& name, const std::string& scheme, int bits, const std::string& calibration, int64_t group) {
    QuantiseRequest request = common;
    request.scheme = scheme, request.bits = bits, request.calibration = calibration, request.group = group;
    ways.push_back({name, request});
  };
  add("static int8", "static", 8, "min-max", 64);
  add("weight-only int4", "weight-only", 4, "min-max", 64);
  add("dynamic int8", "dynamic", 8, "min-max", 64);
  add("weight-only int8", "weight-only", 8, "min-max", 64);
  add("static int8, ranges by mse", "static", 8, "mse", 64);
  add("static int8, ranges by percentile", "static", 8, "percentile", 64);
  add("weight-only int4, groups of 32", "weight-only", 4, "min-max", 32);
  return ways;
}

bool is_better(const MeasuredModel& a, const MeasuredModel& b, const CompressionLimits& limits) {
  const auto of = [&](const MeasuredModel& model) {
    const auto bytes = static_cast<double>(model.bytes);
    return limits.max_error ? std::tuple(bytes, model.error, model.seconds_batch_1) : std::tuple(model.error, bytes, model.seconds_batch_1);
  };
  return of(a) < of(b);
}

std::optional<size_t> judge(std::vector<TriedCompression>& tried, const CompressionLimits& limits) {
  std::vector<size_t> order;
  for (size_t i = 0; i < tried.size(); ++i)
    if (tried[i].measured) order.push_back(i);
  const auto of = [&](size_t i) { return std::pair(tried[i].measured->bytes, tried[i].measured->error); };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return of(a) < of(b); });
  double least = std::numeric_limits<double>::infinity();
  std::optional<size_t> taken;
  for (const size_t i : order) {
    const MeasuredModel& model = *tried[i].measured;
    tried[i].is_on_front = model.error < least;
    least = std::min(least, model.error);
    tried[i].fits = within(model, limits);
    if (tried[i].fits && !tried[i].is_original && (!taken || is_better(model, *tried[*taken].measured, limits))) taken = i;
  }
  return taken;
}

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

/// One series for each model, and the front as a dashed line.
std::vector<PlotSeries> series_of(const std::vector<TriedCompression>& tried) {
  std::vector<PlotSeries> all;
  PlotSeries front{.name = "Pareto front", .look = PlotSeries::kGrey, .kind = PlotSeries::Kind::kDashed};
  for (const TriedCompression& one : tried) {
    if (!one.measured) continue;
    auto series = std::find_if(all.begin(), all.end(), [&](const PlotSeries& each) { return each.name == one.model; });
    if (series == all.end()) series = all.insert(series, {.name = one.model, .look = static_cast<int>(all.size())});
    series->marks.push_back(mark_of(one));
    if (one.is_on_front) front.marks.push_back(mark_of(one));
  }
  std::sort(front.marks.begin(), front.marks.end(), [](const Mark& a, const Mark& b) { return a.x < b.x; });
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
  return report::table(table, "everything tried");
}

}  // namespace

std::string tried_page(const std::vector<TriedCompression>& tried, std::optional<size_t> taken, const std::string& title) {
  report::StudyChart chart{.id = "tried", .title = "Error against size"};
  chart.x = {"bytes of the file", report::PlotAxis::Scale::kLog2, std::nullopt};
  chart.y.label = "error on the validation data, %";
  chart.size = report::StudyChart::Size::kWide;
  chart.series = series_of(tried);
  chart.note = "Hollow: outside the limits. The dashed line is the Pareto front.";
  chart.description = concat(tried.size(), " compressed models: error against file size.");
  const std::string content = report::study_chart(chart) + "\n" + table_of(tried, taken);
  return compression_page(title, "", report::mark_shapes() + "<main>\n" + report::section("search", "Everything tried", "", content));
}

}  // namespace cohort
