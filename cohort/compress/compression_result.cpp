// Measures two models and prints the comparison.
//
// Seconds: both models run in alternating blocks on one thread, so other load on the machine affects both; the median counts. About two
// seconds. Instructions: the hardware counter around one forward. Memory: growth of the heap while the model is read (int8 kernels keep
// packed weights outside of LibTorch's allocator), plus the peak of LibTorch's allocator during a forward of one sample.
#include "cohort/compress/compression_result.h"

#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/util/Logging.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <malloc.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/writable_place.h"
#include "cohort/base/statistics.h"
#include "cohort/base/system/machine.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/compress/compressed_content.h"
#include "cohort/infer/evaluate_trained.h"
#include "cohort/infer/trained_file.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/report/draw/page.h"
#include "cohort/train/model/batch_tensors.h"

namespace cohort {

void check_not_compressed(const TrainedFile& file, bool allow_sparse) {
  const CompressedForm* const form = file.compressed();
  const bool is_plain = !form || (form->layers.empty() && form->tensors.empty());
  if (!is_plain && !(allow_sparse && form->is_exact()))
    fail(ErrorCode::kBadInput, file.given(), " is compressed already (", quote_text(form->method), "); give the run that it was made from");
}

void check_differs_from_input(const TrainedFile& file, const std::string& out) {
  std::error_code ignored;
  if (std::filesystem::equivalent(file.path(), out, ignored))
    fail(ErrorCode::kBadInput, "--out ", out, " is the file that is read, and would be lost; give another name");
}

void check_compressed_name(const std::string& out) {
  if (std::filesystem::path(out).extension() != ".safetensors")
    fail(ErrorCode::kBadInput, "--out ", out, ": the file is written as safetensors; give a name that ends in .safetensors");
  check_writable_file(out);
  check_holds_kind(out, "{", 8, "a safetensors file");
}

namespace {

std::string with_digits(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string error_text(double error, bool regression) {
  if (std::isnan(error)) return "-";
  return regression ? with_digits("%.4f", error) : with_digits("%.2f %%", 100 * error);
}

struct Comparison {
  const char *better, *worse;
};

std::string times(double original, double compressed, const Comparison& words) {
  if (!(compressed > 0 && original > 0)) return "";
  const double factor = original / compressed;
  if (std::abs(factor - 1) < 0.005) return "the same";
  return factor >= 0.995 ? concat(with_digits("%.2f", factor), " x ", words.better)
                         : concat(with_digits("%.2f", 1 / factor), " x ", words.worse);
}

using Row = std::vector<std::string>;

/// Name, original, compressed, change.
std::vector<Row> result_rows(const CompressionResult& result, bool regression) {
  const MeasuredModel &original = result.original, &compressed = result.compressed;
  const auto error_change = [&](const MeasuredModel& model) {
    const double change = model.error - original.error;
    if (std::isnan(change)) return std::string();
    return regression ? with_digits("%+.4f", change) : with_digits("%+.2f points", 100 * change);
  };
  std::vector<Row> rows = {{concat("error, ", with_commas(result.validation_samples), " samples"), error_text(original.error, regression),
                            error_text(compressed.error, regression), error_change(compressed)}};
  if (result.tuned) rows.push_back({"trained, in floats", "", error_text(result.tuned->error, regression), error_change(*result.tuned)});
  rows.push_back({"loss", with_digits("%.5f", original.loss), with_digits("%.5f", compressed.loss),
                  with_digits("%+.5f", compressed.loss - original.loss)});
  const auto add = [&](const std::string& name, auto before, auto after, const auto& text, const Comparison& words) {
    rows.push_back({name, text(before), text(after), times(static_cast<double>(before), static_cast<double>(after), words)});
  };
  add("file", original.bytes, compressed.bytes, human_bytes, {"smaller", "larger"});
  add("memory, 1 sample", original.memory_bytes, compressed.memory_bytes, human_bytes, {"less", "more"});
  add("1 sample, one thread", original.seconds_batch_1, compressed.seconds_batch_1, human_seconds, {"as fast", "as slow"});
  add("64 samples, one thread", original.seconds_batch_64, compressed.seconds_batch_64, human_seconds, {"as fast", "as slow"});
  if (original.instructions && compressed.instructions)
    add("instructions, 1 sample", *original.instructions, *compressed.instructions, with_commas, {"fewer", "more"});
  return rows;
}

/// Name, original bytes, bytes, loss increase or sparsity, description.
std::vector<Row> layer_rows(const CompressionResult& result) {
  std::vector<Row> rows;
  for (const CompressedLayerResult& layer : result.layers)
    rows.push_back({concat(layer.layer, " (", layer.kind, ")"), human_bytes(layer.original_bytes), human_bytes(layer.bytes),
                    layer.loss_increase ? with_digits("%+.5f", *layer.loss_increase)
                    : layer.sparsity    ? with_digits("%.1f %%", 100 * *layer.sparsity)
                                        : "",
                    layer.done});
  return rows;
}

/// Heading of the fourth column of layer_rows().
std::string cost_heading(const CompressionResult& result) {
  const bool is_pruned =
      std::any_of(result.layers.begin(), result.layers.end(), [](const auto& layer) { return layer.sparsity.has_value(); });
  return is_pruned ? "gone" : "loss";
}

}  // namespace

std::vector<Json> layer_lines(const CompressionResult& result) {
  std::vector<Json> lines;
  for (const CompressedLayerResult& layer : result.layers) {
    lines.push_back({{"event", "compress_layer"},
                     {"layer", layer.layer},
                     {"kind", layer.kind},
                     {"done", layer.done},
                     {"bytes", layer.bytes},
                     {"original_bytes", layer.original_bytes},
                     {"loss_increase", layer.loss_increase ? finite_json(*layer.loss_increase) : Json(nullptr)}});
    if (layer.sparsity) lines.back()["sparsity"] = *layer.sparsity;
  }
  return lines;
}

Json result_line(const CompressionResult& result) {
  Json line = {{"event", "compress"}, {"method", result.method}, {"step", result.step}, {"val_samples", result.validation_samples}};
  const auto add_both = [&](const std::string& key, const auto& value) {
    line[key] = value(result.compressed);
    line["original_" + key] = value(result.original);
  };
  add_both("val_loss", [](const MeasuredModel& model) { return finite_json(model.loss); });
  add_both("val_error", [](const MeasuredModel& model) { return finite_json(model.error); });
  add_both("bytes", [](const MeasuredModel& model) { return model.bytes; });
  add_both("seconds_batch_1", [](const MeasuredModel& model) { return model.seconds_batch_1; });
  add_both("seconds_batch_64", [](const MeasuredModel& model) { return model.seconds_batch_64; });
  add_both("instructions", [](const MeasuredModel& model) { return model.instructions ? Json(*model.instructions) : Json(nullptr); });
  add_both("memory_bytes", [](const MeasuredModel& model) { return model.memory_bytes; });
  line["out"] = result.out;
  if (result.tuned) {
    line["tuned_val_loss"] = finite_json(result.tuned->loss);
    line["tuned_val_error"] = finite_json(result.tuned->error);
  }
  return line;
}

std::string result_table(const CompressionResult& result, bool regression) {
  std::vector<Row> layers = layer_rows(result), rows = result_rows(result, regression);
  if (!layers.empty()) layers.insert(layers.begin(), {"layer", "bytes", "then", cost_heading(result), "done"});
  rows.insert(rows.begin(), {result.method, result.original_name, result.compressed_name, ""});
  size_t widest = 0;
  for (const Row& row : layers) widest = std::max(widest, std::min<size_t>(printable(row[0]).size(), 44));
  const auto columns = [](const Row& row, size_t name_width, int width) {
    char text[512];
    std::snprintf(text, sizeof text, "%-*s %*s %*s  ", static_cast<int>(name_width), printable(row[0]).c_str(), width, row[1].c_str(),
                  width, row[2].c_str());
    return std::string(text);
  };
  std::string out;
  for (const Row& row : layers) {
    const std::string blanks(row[3].size() < 9 ? 9 - row[3].size() : 0, ' ');
    out += concat(columns(row, widest, 10), blanks, row[3], "  ", printable(row[4]), "\n");
  }
  if (!layers.empty()) out += "\n";
  for (const Row& row : rows) out += concat(columns(row, 26, 14), row[3], "\n");
  return out;
}

namespace {

using report::escape_html;

report::Table html_table(std::vector<report::Table::Column> columns, std::vector<Row> rows) {
  for (Row& row : rows)
    for (std::string& cell : row) cell = escape_html(cell);
  return {.columns = std::move(columns), .rows = std::move(rows)};
}

}  // namespace

std::string compression_page(const std::string& title, const std::string& headline, const std::string& content) {
  return report::study_document(
      title,
      concat("<header>\n<div class=\"top\"><span class=\"brand\">Cohort</span><span>compression</span></div>\n<h1>", escape_html(title),
             "</h1>\n", headline.empty() ? "" : concat("<p>", escape_html(headline), "</p>\n"), "</header>\n", content, "</main>\n"));
}

std::string result_page(const CompressionResult& result, bool regression, const std::string& headline) {
  std::string body = report::section(
      "models", "Both models", "Seconds are medians of a forward; the two models run in alternation.",
      report::table(html_table({{""}, {result.original_name, true}, {result.compressed_name, true}, {""}}, result_rows(result, regression)),
                    "both models"));
  if (!result.layers.empty())
    body += report::section(
        "layers", "Layer by layer", cost_heading(result) == "loss" ? "loss: its increase where only this layer is compressed." : "",
        report::table(html_table({{"layer"}, {"bytes", true}, {"then", true}, {cost_heading(result), true}, {"done"}}, layer_rows(result)),
                      "layer by layer"));
  return compression_page(result.method, headline, "<main>\n" + body);
}

namespace {

/// LibTorch computes on one thread until the returned object is destroyed.
[[nodiscard]] auto on_one_thread() {
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  return c10::make_scope_exit([before] { at::set_num_threads(before); });
}

double seconds_of(LayerGraph& model, const at::Tensor& input) {
  const double start = steady_seconds();
  model.forward(input);
  return steady_seconds() - start;
}

struct Medians {
  double original_seconds = 0, compressed_seconds = 0;
};

Medians measure_alternating(LayerGraph& original, LayerGraph& compressed, const at::Tensor& input) {
  constexpr int kWarmUp = 3, kMinRounds = 2, kMaxRounds = 38, kBlock = 8;
  constexpr double kTargetSeconds = 1;
  double once = 0;
  for (int i = 0; i < kWarmUp; ++i) once = seconds_of(original, input) + seconds_of(compressed, input);
  const int rounds = std::clamp(static_cast<int>(kTargetSeconds / std::max(once * kBlock, 1e-9)), kMinRounds, kMaxRounds);
  std::vector<double> original_seconds, compressed_seconds;
  for (int round = 0; round < rounds; ++round) {
    // Blocks: a single forward would find the caches full of the other model.
    for (int i = 0; i < kBlock; ++i) original_seconds.push_back(seconds_of(original, input));
    for (int i = 0; i < kBlock; ++i) compressed_seconds.push_back(seconds_of(compressed, input));
  }
  return {median(original_seconds), median(compressed_seconds)};
}

/// Instructions of one forward of a model that has run before.
std::optional<int64_t> instructions_of(LayerGraph& model, const at::Tensor& input) {
  const InstructionCount count;
  const std::optional<int64_t> before = count.read();
  model.forward(input);
  const std::optional<int64_t> after = count.read();
  return before && after ? std::optional(*after - *before) : std::nullopt;
}

/// Bytes that this thread holds from LibTorch's CPU allocator, and their peak.
class TensorMemory : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t alloc_size, size_t, size_t, c10::Device device) override {
    if (!device.is_cpu()) return;
    held_ += alloc_size;
    peak_ = std::max(peak_, held_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return peak_; }

 private:
  int64_t held_ = 0, peak_ = 0;
};

/// Bytes in use in all arenas of the C library.
int64_t heap_bytes() {
  const struct mallinfo2 info = ::mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

int64_t memory_bytes(const TrainedFile& file, const at::Tensor& sample) {
  const DataShape shape = shape_of(description_of(file));
  const int64_t before = heap_bytes();
  const std::shared_ptr<LayerGraph> model = restore_model(file, shape);
  const int64_t held = std::max<int64_t>(0, heap_bytes() - before);
  const auto tensors = std::make_shared<TensorMemory>();
  // LibTorch would warn about memory that was allocated before counting began, which here is the whole model.
  const auto log_level = c10::make_scope_exit([level = FLAGS_caffe2_log_level] { FLAGS_caffe2_log_level = level; });
  FLAGS_caffe2_log_level = 2;
  const c10::DebugInfoGuard counts(c10::DebugInfoKind::PROFILER_STATE, tensors);
  model->forward(sample);
  return held + tensors->peak();
}

void measure_forwards(LayerGraph& original, LayerGraph& compressed, const DataSource& samples, CompressionResult& result) {
  at::NoGradGuard no_grad;
  const auto one_thread = on_one_thread();
  const at::Tensor one = input_batch(samples, 0, 1);
  const Medians single = measure_alternating(original, compressed, one);
  const Medians batch = measure_alternating(original, compressed, input_batch(samples, 0, 64));
  result.original.seconds_batch_1 = single.original_seconds, result.compressed.seconds_batch_1 = single.compressed_seconds;
  result.original.seconds_batch_64 = batch.original_seconds, result.compressed.seconds_batch_64 = batch.compressed_seconds;
  result.original.instructions = instructions_of(original, one), result.compressed.instructions = instructions_of(compressed, one);
}

/// Each model is read from its file again, so that its memory can be seen.
void measure_memory(const TrainedFile& original, const TrainedFile& compressed, const DataSource& samples, CompressionResult& result) {
  at::NoGradGuard no_grad;
  const auto one_thread = on_one_thread();
  const at::Tensor sample = input_batch(samples, 0, 1);
  result.original.memory_bytes = memory_bytes(original, sample);
  result.compressed.memory_bytes = memory_bytes(compressed, sample);
}

struct Restored {
  std::shared_ptr<LayerGraph> model;
  std::shared_ptr<const DataSource> validation;
};

Restored restore_and_evaluate(const TrainedFile& file, const std::shared_ptr<const DataSource>& validation, int threads,
                              MeasuredModel& measured) {
  const DataDescription trained = description_of(file);
  Restored restored{restore_model(file, shape_of(trained)), with_training_normalisation(trained, validation)};
  use_threads_of_training(file, threads);
  const Evaluation found = evaluate_restored(file, *restored.model, *restored.validation).found;
  measured.loss = found.loss;
  measured.error = found.error;
  measured.bytes = file.is_exported() ? static_cast<int64_t>(std::filesystem::file_size(file.path()))
                                      : bytes_of_export(*restored.model, metadata_of_export(file));
  return restored;
}

}  // namespace

void measure_and_write(const LoadedModel& original, const LoadedModel& compressed, CompressedContent& content, const DataSource& validation,
                       CompressionResult& result) {
  measure_forwards(original.model, compressed.model, validation, result);
  result.original.bytes = bytes_of_export(original.model, metadata_of_export(original.file));
  FileMetadata metadata = metadata_of_export(compressed.file);
  metadata[exported::kValLoss] = finite_json(result.compressed.loss).dump();
  metadata[exported::kValError] = finite_json(result.compressed.error).dump();
  content.form.method = result.method;
  result.compressed.bytes = write_compressed_file(result.out, content, std::move(metadata));
  measure_memory(original.file, TrainedFile::open(result.out), validation, result);
}

CompressionResult compare_with_teacher(const TrainedFile& teacher, const TrainedFile& student,
                                       const std::shared_ptr<const DataSource>& validation, int threads) {
  CompressionResult result;
  result.original_name = "teacher";
  result.compressed_name = "student";
  result.step = student.step();
  result.validation_samples = validation->num_samples();
  const Restored of_teacher = restore_and_evaluate(teacher, validation, threads, result.original);
  const Restored of_student = restore_and_evaluate(student, validation, threads, result.compressed);
  measure_forwards(*of_teacher.model, *of_student.model, *of_student.validation, result);
  measure_memory(teacher, student, *of_student.validation, result);
  return result;
}

}  // namespace cohort
