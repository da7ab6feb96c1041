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
  int64_t group = 64;                   ///< Of 4 bits: columns that share a scale.
  std::string calibration = "min-max";  ///< Of static: a name of range_methods().
  int64_t calibration_samples = 512;    ///< Of the training part, spread evenly over it.
  /// Layers go back to floats, the most sensitive first, until the error is at most so much above the original's; none: all stay int8.
  std::optional<double> max_error_increase;
  int threads = 0;  ///< As evaluate_trained() has it.
};

/// Error(kBadInput) for a file that is compressed already, a scheme and bits that no kernel has, and a name that `out` cannot have.
void check_quantise_request(const TrainedFile& file, const QuantiseRequest& request, const std::string& out);

/// Before a training with rounded weights: Error(kBadInput) for data without samples to calibrate with, and a model without a layer that
/// the scheme knows. Runs the calibration samples.
void check_has_layers(const TrainedFile& file, const DataDescription& trained, const DataSource& training, const QuantiseRequest& request);

/// Writes `out`, a safetensors file (docs/formats/compressed.md), in one piece and only when all is measured. `original`: the run that a
/// training with rounded weights made `file` of, which the result is compared with; null: `file` itself. `data`: as the training had it, or
/// samples of its kind with the training's normalisation. `progress` is told what is done now; it may be empty. Errors as
/// check_quantise_request(); Error(kBadInput) for data without samples to calibrate with, or a model without a layer that the scheme knows;
/// Error(kInfeasible) where max_error_increase leaves none.
CompressionResult quantise(const TrainedFile& file, const TrainedFile* original, const DataDescription& trained, const DataSource& training,
                           const DataSource& validation, const QuantiseRequest& request, const std::string& out,
                           const std::function<void(const std::string&)>& progress = {});

}  // namespace cohort
