#pragma once
// `cohort compress quantize`: a trained model becomes a file with int8 (or int4) weights, and what that cost is measured. Torch-free.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "cohort/compress/compression_result.h"
#include "cohort/data/source/source.h"
#include "cohort/infer/trained_file.h"

namespace cohort {

struct QuantiseRequest {
  std::string scheme = "static";        ///< "static", "dynamic" or "weight-only".
  int bits = 8;                         ///< 4: weight-only.
  int64_t group = 64;                   ///< With 4 bits: columns that share a scale.
  std::string calibration = "min-max";  ///< With "static": a name that find_range_method() knows.
  int64_t calibration_samples = 512;    ///< Taken from the training part.
  /// The most sensitive layers return to floats until the error is at most this much above the original's; none: all stay compressed.
  std::optional<double> max_error_increase;
  int threads = 0;  ///< As in evaluate_trained().
};

/// Error(kBadInput) for a file that is compressed already, a scheme and bits without a kernel, and a name that `out` cannot have.
void check_quantise_request(const TrainedFile& file, const QuantiseRequest& request, const std::string& out);

/// Before a training with rounded weights: Error(kBadInput) for data without samples to calibrate with, and for a model without a layer
/// that the scheme supports. Evaluates the calibration samples.
void check_quantisable(const TrainedFile& file, const DataDescription& trained, const DataSource& training, const QuantiseRequest& request);

/// Writes `out`, a safetensors file (docs/formats/compressed.md), atomically and only after all measurements. `original`: the run from
/// which a training with rounded weights made `file`, to compare with; null: `file` itself. `training`, `validation`: with the training's
/// normalisation. `progress`, which may be empty, gets a line for each step. Errors as in check_quantise_request() and check_quantisable();
/// Error(kInfeasible) where max_error_increase leaves no layer compressed.
CompressionResult quantise(const TrainedFile& file, const TrainedFile* original, const DataDescription& trained, const DataSource& training,
                           const DataSource& validation, const QuantiseRequest& request, const std::string& out,
                           const std::function<void(const std::string&)>& progress = {});

}  // namespace cohort
