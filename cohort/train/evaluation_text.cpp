#include "cohort/train/evaluation_text.h"

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/base/text/base64.h"
#include "cohort/data/images/picture_of_sample.h"

namespace cohort {

std::string metrics_text(const std::map<std::string, double>& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) text += concat(", ", name, " ", value);
  return text;
}

std::string error_text(const DataShape& shape, const Evaluation& evaluation) {
  if (!evaluation.has_error()) return "";
  if (shape.regression) return concat(", error ", evaluation.error, " of a deviation");
  return concat(", error ", 100 * evaluation.error, " %",
                evaluation.has_precision() ? concat(", average precision ", evaluation.precision) : "");
}

std::string quality_text(const DataShape& shape, double error, double precision) {
  if (shape.regression) return concat("error ", error, " of a deviation");
  if (!std::isnan(precision)) return concat("average precision ", std::round(1e4 * precision) / 1e4);
  if (shape.labels) return concat("error ", std::round(1e4 * error) / 100, " % of the labels");
  return concat("accuracy ", std::round(1e4 * (1 - error)) / 100, " %");
}

namespace {

constexpr int64_t kMostSamples = 500;
constexpr double kAsBad = 0.98;  // Relative to the error of guessing.

std::string advice() {
  return name_settings(
      "; nothing was learnt so far: try a smaller --lr (a tenth), or a larger one where the loss hardly moved, --warmup-steps or "
      "--clip-norm 1, more --steps, or look whether inputs and targets belong together");
}

/// For samples in random order the average precision of a label is its frequency. Errors are not compared, since most labels are rare.
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

int num_mistakes_of(const DataShape& shape) { return are_pictures(shape) && !shape.has_numbers() ? kMostMistakes : 0; }

MistakesRecord mistakes_record(int64_t step, const std::vector<Mistake>& mistakes, const DataSource& validation,
                               const DataDescription& description) {
  MistakesRecord record{.step = step, .pictures = {}};
  const std::vector<std::string>& names = validation.shape().class_names;
  const auto name = [&](int64_t label) {
    return static_cast<size_t>(label) < names.size() ? names[static_cast<size_t>(label)] : std::to_string(label);
  };
  for (const Mistake& each : mistakes)
    record.pictures.push_back({.sample = each.sample,
                               .label = name(each.label),
                               .predicted = name(each.predicted),
                               .probability = each.probability,
                               .png = to_base64(png_of_sample(validation, description, each.sample))});
  return record;
}

}  // namespace cohort
