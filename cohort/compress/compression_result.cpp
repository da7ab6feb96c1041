#include "cohort/compress/compression_result.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "cohort/base/fail.h"
#include "cohort/base/files/writable_place.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/report/draw/page.h"
#include "cohort/report/study/study_style.h"

namespace cohort {

void check_not_compressed(const TrainedFile& file) {
  if (file.compressed() && !file.compressed()->is_exact())
    fail(ErrorCode::kBadInput, file.given(), " is compressed already (", quote_text(file.compressed()->method),
         "); give the run that it was made from");
}

void check_is_another(const TrainedFile& file, const std::string& out) {
  std::error_code ignored;
  if (std::filesystem::equivalent(file.path(), out, ignored))
    fail(ErrorCode::kBadInput, "--out ", out, " is the file that is read, and would be lost; give another name");
}

void check_compressed_name(const std::string& out) {
  if (std::filesystem::path(out).extension() != ".safetensors")
    fail(ErrorCode::kBadInput, "--out ", out, ": safetensors is what is written; give a name that ends in .safetensors");
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

Json number_or_null(const std::optional<int64_t>& number) { return number ? Json(*number) : Json(nullptr); }

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
  const MeasuredModel &original = result.original, &compressed = result.compressed;
  Json line = {{"event", "compress"},
               {"method", result.method},
               {"step", result.step},
               {"val_samples", result.validation_samples},
               {"val_loss", finite_json(compressed.loss)},
               {"original_val_loss", finite_json(original.loss)},
               {"val_error", finite_json(compressed.error)},
               {"original_val_error", finite_json(original.error)},
               {"bytes", compressed.bytes},
               {"original_bytes", original.bytes},
               {"seconds_batch_1", compressed.seconds_batch_1},
               {"original_seconds_batch_1", original.seconds_batch_1},
               {"seconds_batch_64", compressed.seconds_batch_64},
               {"original_seconds_batch_64", original.seconds_batch_64},
               {"instructions", number_or_null(compressed.instructions)},
               {"original_instructions", number_or_null(original.instructions)},
               {"memory_bytes", compressed.memory_bytes},
               {"original_memory_bytes", original.memory_bytes},
               {"out", result.out}};
  if (result.tuned) {
    line["tuned_val_loss"] = finite_json(result.tuned->loss);
    line["tuned_val_error"] = finite_json(result.tuned->error);
  }
  return line;
}

std::vector<CompressionRow> result_rows(const CompressionResult& result, bool regression) {
  const MeasuredModel &original = result.original, &compressed = result.compressed;
  const double change = compressed.error - original.error;
  std::vector<CompressionRow> rows = {{concat("error, ", with_commas(result.validation_samples), " samples"),
                                       error_text(original.error, regression), error_text(compressed.error, regression),
                                       std::isnan(change) ? ""
                                       : regression       ? with_digits("%+.4f", change)
                                                          : with_digits("%+.2f points", 100 * change)},
                                      {"loss", with_digits("%.5f", original.loss), with_digits("%.5f", compressed.loss),
                                       with_digits("%+.5f", compressed.loss - original.loss)}};
  if (result.tuned)
    rows.insert(rows.begin() + 1,
                {"trained, in floats", "", error_text(result.tuned->error, regression),
                 with_digits(regression ? "%+.4f" : "%+.2f points", (regression ? 1 : 100) * (result.tuned->error - original.error))});
  const auto add = [&](const std::string& name, double before, double after, const auto& text, const Comparison& words) {
    rows.push_back({name, text(before), text(after), times(before, after, words)});
  };
  const auto bytes = [](double value) { return human_bytes(static_cast<int64_t>(value)); };
  add("file", static_cast<double>(original.bytes), static_cast<double>(compressed.bytes), bytes, {"smaller", "larger"});
  add("memory, 1 sample", static_cast<double>(original.memory_bytes), static_cast<double>(compressed.memory_bytes), bytes,
      {"less", "more"});
  add("1 sample, one thread", original.seconds_batch_1, compressed.seconds_batch_1, human_seconds, {"as fast", "as slow"});
  add("64 samples, one thread", original.seconds_batch_64, compressed.seconds_batch_64, human_seconds, {"as fast", "as slow"});
  if (original.instructions && compressed.instructions)
    add("instructions, 1 sample", static_cast<double>(*original.instructions), static_cast<double>(*compressed.instructions),
        [](double value) { return with_commas(static_cast<int64_t>(value)); }, {"fewer", "more"});
  return rows;
}

std::vector<CompressionRow> layer_rows(const CompressionResult& result) {
  std::vector<CompressionRow> rows;
  for (const CompressedLayerResult& layer : result.layers)
    rows.push_back({concat(layer.layer, " (", layer.kind, ")"), human_bytes(layer.original_bytes), human_bytes(layer.bytes),
                    layer.loss_increase ? with_digits("%+.5f", *layer.loss_increase)
                    : layer.sparsity    ? with_digits("%.1f %%", 100 * *layer.sparsity)
                                        : "",
                    layer.done});
  return rows;
}

std::string cost_heading(const CompressionResult& result) {
  const bool is_pruned =
      std::any_of(result.layers.begin(), result.layers.end(), [](const auto& layer) { return layer.sparsity.has_value(); });
  return is_pruned ? "gone" : "loss";
}

std::string result_table(const CompressionResult& result, bool regression) {
  const std::vector<CompressionRow> layers = layer_rows(result);
  size_t widest = 5;
  for (const CompressionRow& row : layers) widest = std::max(widest, std::min<size_t>(printable(row.name).size(), 44));
  std::string out;
  const auto line = [&](int first, int others, const CompressionRow& row) {
    char text[512];
    std::snprintf(text, sizeof text, "%-*s %*s %*s ", first, printable(row.name).c_str(), others, row.original.c_str(), others,
                  row.compressed.c_str());
    out += text;
  };
  const auto layer_line = [&](const CompressionRow& row) {
    line(static_cast<int>(widest), 10, row);
    char text[32];
    std::snprintf(text, sizeof text, "%10s", row.change.c_str());
    out += concat(text, "  ", printable(row.done), "\n");
  };
  if (!layers.empty()) layer_line({"layer", "bytes", "then", cost_heading(result), "done"});
  for (const CompressionRow& row : layers) layer_line(row);
  if (!layers.empty()) out += "\n";
  std::vector<CompressionRow> rows = {{result.method, result.original_name, result.compressed_name, ""}};
  for (CompressionRow& row : result_rows(result, regression)) rows.push_back(std::move(row));
  for (const CompressionRow& row : rows) {
    line(26, 14, row);
    out += concat(" ", row.change, "\n");
  }
  return out;
}

// A page with what one compression did, layer by layer, and both models beside one another.

namespace {

using report::escape_html;

report::Table models_table(const CompressionResult& result, bool regression) {
  report::Table table{.columns = {{""}, {result.original_name, true}, {result.compressed_name, true}, {""}}, .rows = {}};
  for (const CompressionRow& row : result_rows(result, regression))
    table.rows.push_back({escape_html(row.name), escape_html(row.original), escape_html(row.compressed), escape_html(row.change)});
  return table;
}

report::Table layers_table(const CompressionResult& result) {
  report::Table table{.columns = {{"layer"}, {"bytes", true}, {"then", true}, {cost_heading(result), true}, {"done"}}, .rows = {}};
  for (const CompressionRow& row : layer_rows(result))
    table.rows.push_back(
        {escape_html(row.name), escape_html(row.original), escape_html(row.compressed), escape_html(row.change), escape_html(row.done)});
  return table;
}

}  // namespace

std::string result_page(const CompressionResult& result, bool regression, const std::string& headline) {
  std::string body = concat("<header>\n<div class=\"top\"><span class=\"brand\">Cohort</span><span>compression</span></div>\n<h1>",
                            escape_html(result.method), "</h1>\n<p>", escape_html(headline), "</p>\n</header>\n<main>\n");
  body += report::section("models", "Both models", "Seconds are medians of a forward, the two in turn.",
                          report::table(models_table(result, regression), "both models"));
  if (!result.layers.empty())
    body += report::section("layers", "Layer by layer",
                            cost_heading(result) == "loss" ? "loss: how much it rises where this layer alone is compressed." : "",
                            report::table(layers_table(result), "layer by layer"));
  return report::study_document(result.method, body + "</main>\n");
}

}  // namespace cohort
