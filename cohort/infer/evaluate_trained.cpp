// Repeats the sums of the training's evaluation. The training divided the samples into chunks and the chunks over ranks; each rank summed
// its own, then the sums were added in the order of ranks. This process does the same additions: chunk c belongs to rank c mod shares. So
// results are equal bit for bit wherever a forward on that many threads is; only layers that were split over ranks (tp) were computed in
// another order. Cost: one forward of every sample.
#include "cohort/infer/evaluate_trained.h"

#include <algorithm>
#include <cstdio>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/compute_threads.h"
#include "cohort/infer/trained_file.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/train/model/evaluate.h"

namespace cohort {
namespace {

/// A parameter of the training's evaluations, clamped to bounds.
int64_t evaluation_parameter(const TrainedFile& file, const char* key, int64_t fallback, int64_t least, int64_t most) {
  const auto found = file.evaluation().find(key);
  const bool is_number = found != file.evaluation().end() && found->is_number_integer();
  return std::clamp(is_number ? found->get<int64_t>() : fallback, least, most);
}

}  // namespace

void use_threads_of_training(const TrainedFile& file, int threads) {
  use_compute_threads(threads > 0 ? threads : static_cast<int>(evaluation_parameter(file, "threads", 0, 0, 1024)));
}

TrainedEvaluation evaluate_restored(const TrainedFile& file, LayerGraph& model, const DataSource& source, const std::string& metrics) {
  constexpr int64_t kMostClasses = 4096;  // The confusion matrix has its square.
  const DataShape& shape = source.shape();
  Group alone;
  const EvaluationOptions options{
      .batch_size = evaluation_parameter(file, "chunk_samples", 250, 1, 1'000'000),
      .with_confusion = shape.kind == DataShape::Kind::kImage && !shape.has_numbers() && shape.num_classes <= kMostClasses,
      .metrics = named_metrics(metrics, shape),
      .num_shares = static_cast<int>(evaluation_parameter(file, "shares", 1, 1, 100'000))};
  return {evaluate(model, source, alone, options), static_cast<bool>(model.loss())};
}

TrainedEvaluation evaluate_trained(const TrainedFile& file, const DataDescription& trained, const DataSource& source, int threads,
                                   const std::string& metrics) {
  use_threads_of_training(file, threads);
  return evaluate_restored(file, *restore_model(file, shape_of(trained)), source, metrics);
}

namespace {

constexpr size_t kMostColumns = 20, kLongestName = 24;

std::string padded(const std::string& text, size_t width, bool align_right = true) {
  const std::string blanks(width > text.size() ? width - text.size() : 0, ' ');
  return align_right ? blanks + text : text + blanks;
}

/// Names come from files, so control characters are replaced.
std::string shown(const std::string& name) {
  std::string text = printable(name);
  std::replace(text.begin(), text.end(), '\n', '?');
  return text.size() > kLongestName ? text.substr(0, kLongestName - 2) + ".." : text;
}

std::string percent(int64_t part, int64_t whole) {
  if (whole == 0) return "-";
  char out[32];
  std::snprintf(out, sizeof out, "%.1f %%", 100 * static_cast<double>(part) / static_cast<double>(whole));
  return out;
}

size_t widest_name(const std::vector<ClassResult>& classes) {
  size_t width = 5;
  for (const ClassResult& each : classes) width = std::max(width, shown(each.name).size());
  return width;
}

}  // namespace

std::vector<ClassResult> class_results(const Evaluation& evaluation, const std::vector<std::string>& class_names) {
  const std::vector<std::vector<int64_t>>& counts = evaluation.confusion;
  std::vector<ClassResult> classes(counts.size());
  for (size_t label = 0; label < counts.size(); ++label)
    classes[label].name = label < class_names.size() ? class_names[label] : std::to_string(label);
  for (size_t truth = 0; truth < counts.size(); ++truth) {
    classes[truth].right = counts[truth][truth];
    for (size_t guess = 0; guess < counts.size(); ++guess) {
      const int64_t count = counts[truth][guess];
      classes[truth].samples += count;
      classes[guess].taken_for += count;
      if (guess == truth || count <= classes[truth].num_confused) continue;
      classes[truth].num_confused = count;
      classes[truth].confused_with = classes[guess].name;
    }
  }
  return classes;
}

std::string class_table(const std::vector<ClassResult>& classes) {
  const size_t width = widest_name(classes);
  std::string out = padded("class", width, false) + "  samples  recognised  precision  most often taken for\n";
  for (const ClassResult& each : classes) {
    out += padded(shown(each.name), width, false) + padded(with_commas(each.samples), 9) + padded(percent(each.right, each.samples), 12) +
           padded(percent(each.right, each.taken_for), 11);
    if (each.num_confused > 0) out += concat("  ", shown(each.confused_with), " (", with_commas(each.num_confused), ")");
    out += "\n";
  }
  return out;
}

std::string confusion_table(const Evaluation& evaluation, const std::vector<ClassResult>& classes) {
  if (classes.size() > kMostColumns) return "";
  size_t cell = std::to_string(classes.size()).size() + 1;
  for (const auto& row : evaluation.confusion)
    for (const int64_t count : row) cell = std::max(cell, std::to_string(count).size());
  const std::string corner = "taken for:";
  const size_t width = std::max(widest_name(classes) + 4, corner.size());
  std::string out = padded(corner, width, false);
  for (size_t column = 0; column < classes.size(); ++column) out += " " + padded(std::to_string(column), cell);
  out += "\n";
  for (size_t row = 0; row < classes.size(); ++row) {
    out += padded(padded(std::to_string(row), 2) + "  " + shown(classes[row].name), width, false);
    for (const int64_t count : evaluation.confusion[row]) out += " " + padded(count == 0 ? "." : std::to_string(count), cell);
    out += "\n";
  }
  return out;
}

}  // namespace cohort
