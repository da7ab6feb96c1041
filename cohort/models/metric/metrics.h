#pragma once
// What an evaluation says beside loss and error: metrics by name, and average precision of labels.

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

// Metrics that --metrics names: what else an evaluation says beside loss and error. A metric is a function of sums over the targets, so
// those of chunks, ranks and layouts are added, and it is the same on all of them but for the rounding of the sums. Doubles throughout.
//
//   top5-error       classes: share of targets whose class is not among the five likeliest (of fewer classes: always 0)
//   balanced-error   classes: 1 - the mean over classes of the share of their targets that are right; classes without targets do not count
//   f1               classes: mean over classes of 2 right / (targets + guesses), the macro F1 score; classes with neither do not count
//   perplexity       classes: exp of the mean cross-entropy
//   mae              numbers: mean of |output - target|, in deviations of the training's targets
//   r2               numbers: 1 - squares of the error / squares of the targets' distance from their mean
//
// and the user's own, which COHORT_METRIC registers.

struct NamedMetric {
  std::string name;
  int64_t num_sums = 0;
  /// Adds a chunk to `sums`. Scores {targets, classes}, or of a regression numbers and of labels scores {targets}, and the targets
  /// {targets}: float32 or int64 in host memory.
  std::function<void(const at::Tensor& output, const at::Tensor& target, double* sums)> add;
  std::function<double(const double* sums)> value;  ///< NaN where it is not defined.
};

/// Of "f1,perplexity". Error(kBadInput) for a name that is none, one twice, or one that is not of such data.
std::vector<NamedMetric> named_metrics(const std::string& names, const DataShape& data);

// How well scores of labels put the samples that have a label before those that have it not, whatever the threshold: average precision,
// and its mean over labels.
//
// Of one label, with samples in falling order of their scores, the n-th threshold takes all samples with at least the n-th largest of the
// different scores: samples with equal scores are taken together, so no order of them matters. With precision P_n, the share of those taken
// that have the label, and recall R_n, the share of those with the label that are taken,
//
//   AP = sum over n of (R_n - R_{n-1}) P_n,   R_0 = 0
//
// a sum of steps, without interpolation, as scikit-learn's average_precision_score has it. The mean over labels (its average="macro") is
// of those labels alone that some evaluated sample has and some has not, as init2winit and the Open Graph Benchmark take it; of the others
// no order is right or wrong. Scores are compared as the model gives them: a sigmoid in fp32 would make large ones equal.
//
// Ranks keep the scores of the samples that they evaluated and exchange them label by label: a block of labels is a sum over ranks of
// {samples, labels} numbers of which one rank's is not 0, which is exact, so the value is the same bits on every rank and whatever ranks
// there are. Each label is then one rank's to sort.
//
// Memory: 5 bytes a sample and label on the rank that evaluated it, and while they are exchanged at most 32 MiB, or 8 bytes a sample where
// that is more. Exchange: 8 bytes a sample and label through an all-reduce, none by one rank. Time: a sort of the samples for each label.

/// Of one label: `has_label` is 1 or 0 for each score. None where no sample has it, or all have; NaN where a score is.
std::optional<double> average_precision(std::span<const float> scores, std::span<const float> has_label);

/// What a rank collects. Not thread-safe.
class LabelScores {
 public:
  LabelScores(int64_t num_samples, int64_t num_labels) : num_samples_(num_samples), num_labels_(num_labels) {}

  /// Of the samples from `first` on: both {samples, labels}, any floating-point type, in host memory.
  void add(int64_t first, const at::Tensor& scores, const at::Tensor& labels);
  /// Collective: each of the samples was added on one rank. NaN where no label has an average precision.
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
