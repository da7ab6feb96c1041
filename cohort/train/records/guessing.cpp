#include "cohort/train/records/guessing.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

constexpr int64_t kMostSamples = 500;
constexpr double kAsBad = 0.98;  // Of the error of guessing.

std::string advice() {
  return name_settings(
      "; it has learnt nothing of them so far: try another --lr (a tenth, or ten times), more --steps, or look whether inputs and targets "
      "belong together");
}

}  // namespace

std::string guessing_sentence(const DataSource& validation, double val_error) {
  const DataShape& shape = validation.shape();
  if (!std::isfinite(val_error)) return "";
  if (shape.regression) {
    if (val_error < kAsBad) return "";
    return concat("an error of ", val_error, " of a deviation is no better than always answering the mean", advice());
  }
  std::vector<int64_t> indices(static_cast<size_t>(std::min(kMostSamples, validation.num_samples())));
  std::iota(indices.begin(), indices.end(), 0);
  Batch batch;
  validation.read(indices, batch);
  if (batch.targets.empty()) return "";
  std::map<int64_t, int64_t> counts;
  for (const int64_t target : batch.targets) ++counts[target];
  const auto most = std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const double share = static_cast<double>(most->second) / static_cast<double>(batch.targets.size());
  if (share == 1 || val_error < kAsBad * (1 - share)) return "";
  const auto answer = static_cast<size_t>(most->first);
  const std::string name = answer < shape.class_names.size()      ? shape.class_names[answer]
                           : shape.kind == DataShape::Kind::kText ? concat(shape.vocabulary() == 256 ? "byte " : "piece ", answer)
                                                                  : concat("class ", answer);
  return concat("an accuracy of ", std::round(1000 * (1 - val_error)) / 10, " % is no better than always answering ", name,
                ", which is right for ", std::round(1000 * share) / 10, " % of the validation samples", advice());
}

}  // namespace cohort
