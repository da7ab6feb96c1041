#pragma once
// Validation: every rank takes its share of the samples, the sums are exchanged.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/data/source/source.h"
#include "cohort/models/metric/metrics.h"
#include "cohort/record/evaluation.h"

namespace cohort {

class LayerGraph;

struct EvaluationOptions {
  int64_t batch_size = 250;  ///< Of a chunk: what goes through the model at once.
  bool with_confusion = false;
  int num_mistakes = 0;  ///< How many of the samples that are surely wrong are named, of data with classes; the same on all ranks.
  std::vector<NamedMetric> metrics = {};  ///< What else is told.
  int index = 0, count = 1;               ///< This rank computes chunks index, index + count, ... of the samples.
  int num_shares = 1;                     ///< Ranks that this one stands for: each one's sums are made apart, and added in their order.
  std::function<void()> begin;            ///< Runs before this rank's first forward,
  std::function<void()> finish;           ///< and after its last, before the ranks exchange their sums.
  /// The model's output for this rank's chunk `number` (0, 1, ...), or undefined where another rank counts it. Empty: the model's forward.
  std::function<at::Tensor(int64_t number, const std::function<at::Tensor()>& input)> forward;
};

/// Collective over `group`; the same result on every rank. Leaves the model in the mode (train or eval) in which it was.
Evaluation evaluate(LayerGraph& model, const DataSource& source, Group& group, const EvaluationOptions& options);

/// Whether the output for the first samples is one score a class for each target (of a regression one number, of labels one score), without
/// which no error is known.
bool gives_scores(LayerGraph& model, const DataSource& source);

/// The first bytes of a source of text, at most `num_bytes`, or those of its first pieces.
std::string first_text(const DataSource& source, size_t num_bytes);

struct TextSampling {
  int64_t num_bytes = 400;
  double temperature = 0.8;  ///< Scores are divided by it; 0: always the likeliest byte.
  int64_t top_k = 0;         ///< Only the likeliest so many bytes (or pieces) are drawn from, of two alike the smaller; 0: all.
  uint64_t seed = 1;
  std::function<void(char)> written = {};                  ///< Is given each byte once it is drawn.
  std::shared_ptr<const Vocabulary> vocabulary = nullptr;  ///< Of a model of pieces; of the last one the bytes up to num_bytes.
};
/// The bytes that follow `prompt` (empty: a line feed) when each next one is drawn from the model's distribution; deterministic by seed.
/// For models of text of `shape`, whose context it sees: the last bytes. None where the output is no scores of the next byte.
std::optional<std::string> sample_text(LayerGraph& model, const DataShape& shape, const std::string& prompt, const TextSampling& how);

}  // namespace cohort
