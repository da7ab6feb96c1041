#include "cohort/train/records/guessing.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

constexpr int64_t kMostSamples = 500;
constexpr double kAsBad = 0.98;  // Of the error of guessing.

std::string advice() {
  return name_settings(
      "; nothing was learnt so far: try a smaller --lr (a tenth), or a larger one where the loss hardly moved, --warmup-steps or "
      "--clip-norm 1, more --steps, or look whether inputs and targets belong together");
}

/// Of samples in any order a label's average precision is the share that has it. Most labels are rare, so the error says little of them.
Guessing guessing_of_labels(const Batch& batch, int64_t num_labels, double val_precision) {
  Guessing guessing;
  std::vector<double> with_label(static_cast<size_t>(num_labels));
  for (size_t i = 0; i < batch.numbers.size(); ++i) with_label[i % with_label.size()] += static_cast<double>(batch.numbers[i]);
  double sum = 0, count = 0;
  for (const double each : with_label)
    if (each > 0 && each < static_cast<double>(batch.num_samples)) sum += each / static_cast<double>(batch.num_samples), ++count;
  if (!std::isfinite(val_precision) && std::all_of(with_label.begin(), with_label.end(), [](double each) { return each == 0; }))
    guessing.sentence = name_settings(
        "no label is on any of the validation samples, so they have no average precision: keep more of them (--val-samples), or others");
  if (count == 0) return guessing;
  guessing.precision = sum / count;
  if (std::isfinite(val_precision) && val_precision * kAsBad <= guessing.precision)
    guessing.sentence =
        concat("an average precision of ", val_precision, " is no better than that of scores without meaning, which is about ",
               guessing.precision, " on the validation samples", advice());
  return guessing;
}

}  // namespace

Guessing compare_with_guessing(const DataSource& validation, double val_error, double val_precision) {
  const DataShape& shape = validation.shape();
  Guessing guessing;
  if (!std::isfinite(val_error)) return guessing;
  if (shape.regression) {
    guessing.error = 1;
    if (val_error >= kAsBad)
      guessing.sentence = concat("an error of ", val_error, " of a deviation is no better than always answering the mean", advice());
    return guessing;
  }
  const int64_t samples = validation.num_samples(), count = std::min(kMostSamples, samples);
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < count; ++i) indices.push_back(i * samples / count);
  Batch batch;
  validation.read(indices, batch);
  if (shape.labels) return guessing_of_labels(batch, shape.num_classes, val_precision);
  if (batch.targets.empty()) return guessing;
  std::map<int64_t, int64_t> counts;
  for (const int64_t target : batch.targets) ++counts[target];
  const auto most = std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const double share = static_cast<double>(most->second) / static_cast<double>(batch.targets.size());
  guessing.error = 1 - share;
  if (share == 1 || val_error < kAsBad * guessing.error) return guessing;
  const auto answer = static_cast<size_t>(most->first);
  const std::string name = answer < shape.class_names.size()      ? shape.class_names[answer]
                           : shape.kind == DataShape::Kind::kText ? concat(shape.vocabulary() == 256 ? "byte " : "piece ", answer)
                                                                  : concat("class ", answer);
  guessing.sentence = concat("an accuracy of ", std::round(1000 * (1 - val_error)) / 10, " % is ",
                             val_error < guessing.error ? "hardly" : "no", " better than always answering ", name, ", which is right for ",
                             std::round(1000 * share) / 10, " % of the validation samples", advice());
  return guessing;
}

}  // namespace cohort
