#pragma once
// Metrics of an evaluation beside loss and error: those that --metrics names, and the average precision of labels. Definitions and costs:
// metrics.cpp.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/data/source/source.h"

namespace cohort {

/// A metric is a function of sums over the targets, so those of chunks, ranks and layouts are added, and it is the same on all of them but
/// for the rounding of the sums. In double.
struct NamedMetric {
  std::string name = {};
  int64_t num_sums = 0;
  /// Adds a chunk to `sums`. `output`: scores {targets, classes}, or for regressions and labels {targets}; `target`: {targets}; float32 or
  /// int64 in host memory.
  std::function<void(const at::Tensor& output, const at::Tensor& target, double* sums)> add;
  std::function<double(const double* sums)> value;  ///< NaN where it is undefined.
};

/// `names`: "f1,perplexity". Error(kBadInput) for an unknown name, a repeated one, and one that does not apply to such data.
std::vector<NamedMetric> named_metrics(const std::string& names, const DataShape& data);

/// Average precision of one label: `has_label` is 1 or 0 for each score. None where no sample has the label, or all have; NaN where a score
/// is.
std::optional<double> average_precision(std::span<const float> scores, std::span<const float> has_label);

/// Scores of labels that a rank collects. Not thread-safe.
class LabelScores {
 public:
  LabelScores(int64_t num_samples, int64_t num_labels) : num_samples_(num_samples), num_labels_(num_labels) {}

  /// Samples from index `first` on: both {samples, labels}, any floating-point type, in host memory.
  void add(int64_t first, const at::Tensor& scores, const at::Tensor& labels);
  /// Collective; each sample must have been added on one rank. NaN where no label has an average precision.
  double mean_average_precision(Group& group) const;

 private:
  struct Chunk {
    int64_t first;
    at::Tensor scores, labels;  // {samples, labels}, float and uint8.
  };
  at::Tensor block_of(int64_t first_label, int64_t num_labels) const;

  int64_t num_samples_, num_labels_;
  std::vector<Chunk> chunks_;
};

}  // namespace cohort
