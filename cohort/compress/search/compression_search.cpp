// A search by enumeration: every way is tried on every model, and the Pareto front of (error, bytes) is read off.
//   1. sort by bytes, then error; 2. go through it: a model is on the front where its error is below that of all smaller ones.
// Cost: one compression a way; n log n for the front. Source: Kung, Luccio and Preparata 1975 (maxima of a set of vectors), two dimensions.

#include "cohort/compress/search/compression_search.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "cohort/base/fail.h"

namespace cohort {

bool within(const MeasuredModel& model, const CompressionLimits& limits) {
  // The 1e-12: an error is a count over a count.
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

}  // namespace cohort
