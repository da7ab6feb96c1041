#pragma once
// `cohort compress search`: of everything that was tried, which models nobody beats, and which one to take. Torch-free; it measures
// nothing.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/compress/compression_result.h"
#include "cohort/compress/quantise.h"

namespace cohort {

/// One way to make a model smaller.
struct CompressionWay {
  std::string name;  ///< "static int8, ranges by mse".
  QuantiseRequest request;
};
/// In the order in which they are tried: those that usually win first, for time may run out.
std::vector<CompressionWay> compression_ways(const QuantiseRequest& common);

struct TriedCompression {
  std::string model;  ///< As it was given.
  std::string way;
  std::optional<MeasuredModel> measured;  ///< None where it could not be made; `reason` says why.
  std::string reason;
  bool is_original = false;  ///< The model as it is: on the front, if it is, and never taken.
  bool is_on_front = false;  ///< No other has less error and no more bytes, or fewer bytes and no more error.
  bool fits = false;         ///< The limits.
};

struct CompressionLimits {
  std::optional<double> max_error;  ///< A fraction, as `val_error`.
  std::optional<int64_t> max_bytes;
};

/// Sets is_on_front and fits, and returns which to take: of those that fit the one with the fewest bytes where the error is limited, else
/// the one with the least error; of equals the quicker one at batch 1. None where none fits.
std::optional<size_t> judge(std::vector<TriedCompression>& tried, const CompressionLimits& limits);
bool within(const MeasuredModel& model, const CompressionLimits& limits);
/// Whether `a` is to be taken before `b`; both fit.
bool is_better(const MeasuredModel& a, const MeasuredModel& b, const CompressionLimits& limits);

/// Error against bytes of all that was tried, the front as a line: a page (HTML) of its own.
std::string tried_page(const std::vector<TriedCompression>& tried, std::optional<size_t> taken, const std::string& title);

}  // namespace cohort
