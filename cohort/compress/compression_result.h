#pragma once
// What is looked at before a model is compressed, and what a compression did and cost, as values, lines, a table and a page. Torch-free.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/data/source/source.h"
#include "cohort/infer/trained_file.h"

namespace cohort {

/// Error(kBadInput) for a name that promises another format than safetensors, and for a place that can not be written to.
void check_compressed_name(const std::string& out);

/// Error(kBadInput) where `out` is `file` itself, which would be lost.
void check_is_another(const TrainedFile& file, const std::string& out);

/// Error(kBadInput) for a file whose weights are codes already (one whose zeros alone were left out is as good as its run).
void check_not_compressed(const TrainedFile& file);

struct CompressedLayerResult {
  std::string layer, kind;
  std::string done;                          ///< "int8, with relu1", "floats: ..."
  int64_t bytes = 0, original_bytes = 0;     ///< Of its tensors.
  std::optional<double> loss_increase = {};  ///< On the calibration samples, where it alone was compressed; none for what was not tried.
  std::optional<double> sparsity = {};       ///< Of pruning: part of its weights that is zero, or of its channels that went.
};

/// Of the original model, or of the compressed one.
struct MeasuredModel {
  double loss = 0, error = 0;                        ///< On the validation data; the error is NaN where the model's loss is its own.
  int64_t bytes = 0;                                 ///< Of its file.
  double seconds_batch_1 = 0, seconds_batch_64 = 0;  ///< Medians of a forward on one thread.
  /// Of one sample, on that thread: what it costs in energy, in a unit that does not depend on the machine's clock. None without a counter.
  std::optional<int64_t> instructions = {};
  int64_t memory_bytes = 0;  ///< To answer for one sample: weights as the kernels want them, and the largest moment of a forward.
};

struct CompressionResult {
  std::string method;  ///< "quantize static"
  std::string out;
  int64_t step = 0, validation_samples = 0;
  MeasuredModel original, compressed;
  /// Loss and error, in floats, of what a training made of the original before it was compressed; none where nothing trained.
  std::optional<MeasuredModel> tuned = {};
  bool trained = false;                                                    ///< By the command that made it.
  std::vector<CompressedLayerResult> layers;                               ///< Empty where no layer was treated by itself.
  std::string original_name = "original", compressed_name = "compressed";  ///< Heads of the table's columns.
};

/// {"event":"compress_layer",...}, one a layer.
std::vector<Json> layer_lines(const CompressionResult& result);
/// {"event":"compress",...}
Json result_line(const CompressionResult& result);

/// A line of a table for people, not escaped.
struct CompressionRow {
  std::string name, original, compressed;
  std::string change;     ///< Of a layer: what it cost, see cost_heading().
  std::string done = {};  ///< Of a layer.
};
/// Both models; errors in per cent unless `regression`.
std::vector<CompressionRow> result_rows(const CompressionResult& result, bool regression);
std::vector<CompressionRow> layer_rows(const CompressionResult& result);
std::string cost_heading(const CompressionResult& result);
/// All of these as text, and as a page (HTML) of its own.
std::string result_table(const CompressionResult& result, bool regression);
std::string result_page(const CompressionResult& result, bool regression, const std::string& headline);

// What it takes to use two models, beside one another.

class LayerGraph;
/// Seconds and instructions of a forward on one thread, of 1 and of 64 of these samples. Both in turn, so that what else the machine does
/// hits both alike. About two seconds.
void measure_forwards(LayerGraph& original, LayerGraph& compressed, const DataSource& samples, CompressionResult& result);

/// Bytes of the heap that each model, as it is read from its file, holds for one sample: weights as the kernels want them, and the most
/// that a forward has at once beside them.
void measure_memory(const TrainedFile& original, const TrainedFile& compressed, const DataSource& samples, CompressionResult& result);

// What `cohort compress distill` measures once its student is trained: teacher and student side by side.

/// Error and loss of both on `validation`, each with the normalisation of its own training, bytes of their files, and seconds of a forward.
/// `threads` of the evaluations as evaluate_trained() has them. `method` and `out` are left to the caller.
CompressionResult compare_with_teacher(const TrainedFile& teacher, const TrainedFile& student,
                                       const std::shared_ptr<const DataSource>& validation, int threads);

}  // namespace cohort
