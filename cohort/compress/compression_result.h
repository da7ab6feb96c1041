#pragma once
// What a compression did and what it cost: checks before it, measurements of both models, and the result as values, JSON lines, a text
// table and an HTML page. Torch-free.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/data/source/source.h"
#include "cohort/infer/trained_file.h"

namespace cohort {

/// Error(kBadInput) where `out` does not end in .safetensors or cannot be written.
void check_compressed_name(const std::string& out);
/// Error(kBadInput) where `out` is `file` itself, which would be lost.
void check_differs_from_input(const TrainedFile& file, const std::string& out);
/// Error(kBadInput) for a file that holds codes or, unless `allow_sparse`, a file without its zeros, which is as exact as its run.
void check_not_compressed(const TrainedFile& file, bool allow_sparse);

struct CompressedLayerResult {
  std::string layer, kind;
  std::string done;                          ///< For people: "int8, with relu1", "floats: ...".
  int64_t bytes = 0, original_bytes = 0;     ///< Size of its tensors.
  std::optional<double> loss_increase = {};  ///< On the calibration samples with only this layer compressed; none where not measured.
  std::optional<double> sparsity = {};       ///< Fraction of weights that are zero, or of channels removed; only after pruning.
};

/// Measurements of the original or of the compressed model.
struct MeasuredModel {
  double loss = 0, error = 0;                        ///< On the validation data; the error is NaN for a model with its own loss.
  int64_t bytes = 0;                                 ///< File size.
  double seconds_batch_1 = 0, seconds_batch_64 = 0;  ///< Median time of a forward on one thread.
  std::optional<int64_t> instructions = {};          ///< For one sample on one thread; none without a hardware counter.
  int64_t memory_bytes = 0;                          ///< Packed weights plus the peak of a forward of one sample.
};

struct CompressionResult {
  std::string method = {};  ///< "quantize static"
  std::string out = {};     ///< File that was written.
  int64_t step = 0, validation_samples = 0;
  MeasuredModel original = {}, compressed = {};
  std::optional<MeasuredModel> tuned = {};         ///< Loss and error in floats after a fine-tuning, before quantisation; none without one.
  bool trained = false;                            ///< The command that made the result trained the model.
  std::vector<CompressedLayerResult> layers = {};  ///< Empty where layers were not treated one by one.
  std::string original_name = "original", compressed_name = "compressed";  ///< Column headings.
};

/// One {"event":"compress_layer",...} for each layer.
std::vector<Json> layer_lines(const CompressionResult& result);
/// {"event":"compress",...}
Json result_line(const CompressionResult& result);

/// Result as a text table and as an HTML page; errors in per cent unless `regression`.
std::string result_table(const CompressionResult& result, bool regression);
std::string result_page(const CompressionResult& result, bool regression, const std::string& headline);

/// HTML page with a title and a headline, which may be empty, before `content`, which opens <main>.
std::string compression_page(const std::string& title, const std::string& headline, const std::string& content);

/// A model and the file that it was read from.
struct LoadedModel {
  const TrainedFile& file;
  LayerGraph& model;
};
struct CompressedContent;
/// Measures speed and memory of both models on `validation`, writes `content` to result.out with the header of compressed.file, and fills
/// in what `result` lacks. The caller has set losses, errors, method and out.
void measure_and_write(const LoadedModel& original, const LoadedModel& compressed, CompressedContent& content, const DataSource& validation,
                       CompressionResult& result);

/// Result of `cohort compress distill`: teacher and student on `validation`, each with the normalisation of its own training. `threads` as
/// in evaluate_trained(). The caller sets `method` and `out`.
CompressionResult compare_with_teacher(const TrainedFile& teacher, const TrainedFile& student,
                                       const std::shared_ptr<const DataSource>& validation, int threads);

}  // namespace cohort
