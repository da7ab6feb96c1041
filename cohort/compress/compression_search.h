#pragma once
// `cohort compress search`: which of the tried compressions are Pareto-optimal, and which one to take. Torch-free; it measures nothing.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/compress/compression_result.h"
#include "cohort/compress/quantise.h"

namespace cohort {

/// One way to compress a model.
struct CompressionWay {
  std::string name;  ///< "static int8, ranges by mse".
  QuantiseRequest request;
};
/// In the order in which they are tried: the usual winners first, since the time budget may run out.
std::vector<CompressionWay> compression_ways(const QuantiseRequest& common);

struct TriedCompression {
  std::string model;  ///< As the user named it.
  std::string way;
  std::optional<MeasuredModel> measured;  ///< None where it failed; `reason` says why.
  std::string reason;
  bool is_original = false;  ///< The uncompressed model: may be on the front, but is never taken.
  bool is_on_front = false;  ///< No other has less error and no more bytes, or fewer bytes and no more error.
  bool fits = false;         ///< Within the limits.
};

struct CompressionLimits {
  std::optional<double> max_error;  ///< A fraction, as `val_error`.
  std::optional<int64_t> max_bytes;
};

/// Sets is_on_front and fits, and returns the index of the best one that fits by is_better(); none where none fits.
std::optional<size_t> judge(std::vector<TriedCompression>& tried, const CompressionLimits& limits);
bool within(const MeasuredModel& model, const CompressionLimits& limits);
/// Fewer bytes are better where the error is limited, else less error; of equals the faster one at batch 1. Both must fit.
bool is_better(const MeasuredModel& a, const MeasuredModel& b, const CompressionLimits& limits);

/// HTML page: error against bytes of everything tried, and the front as a line.
std::string tried_page(const std::vector<TriedCompression>& tried, std::optional<size_t> taken, const std::string& title);

}  // namespace cohort
