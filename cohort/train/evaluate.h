#pragma once
// Validation: every rank takes its share of the samples, the sums are exchanged.

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/data/source.h"
#include "cohort/models/layer_graph.h"

namespace cohort {

struct Evaluation {
  double loss = 0;   ///< The model's own loss, the mean over all samples; else the mean cross-entropy (nats) over all targets.
  double error = 0;  ///< Share of targets whose likeliest class is wrong; NaN where a loss of one's own is of no scores of classes.
  int64_t num_targets = 0;
  std::vector<std::vector<int64_t>> confusion;  ///< [true class][predicted class]; only when asked for.
  bool has_error() const { return !std::isnan(error); }
};

struct EvaluationOptions {
  int64_t batch_size = 250;  ///< Of a chunk: what goes through the model at once.
  bool with_confusion = false;
  int index = 0, count = 1;      ///< This rank computes chunks index, index + count, ... of the samples.
  std::function<void()> begin;   ///< Runs before this rank's first forward,
  std::function<void()> finish;  ///< and after its last, before the ranks exchange their sums.
  /// The model's output for this rank's chunk `number` (0, 1, ...), or undefined where another rank counts it. Empty: the model's forward.
  std::function<at::Tensor(int64_t number, const std::function<at::Tensor()>& input)> forward;
};

/// Collective over `group`; the same result on every rank. Leaves the model in the mode (train or eval) in which it was.
Evaluation evaluate(LayerGraph& model, const DataSource& source, Group& group, const EvaluationOptions& options);

/// Whether the output for the first samples is one score a class for each target, without which no error is known.
bool gives_scores(LayerGraph& model, const DataSource& source);

/// The first bytes of a source of text, at most `num_bytes`.
std::string first_text(const DataSource& source, size_t num_bytes);

/// `num_bytes` bytes that follow `prompt` when each next byte is drawn from the model's distribution at `temperature`; deterministic by
/// seed. For models of text with the context that `source` has; none where the output is no scores of the next byte.
std::optional<std::string> sample_text(LayerGraph& model, const DataShape& shape, const std::string& prompt, int64_t num_bytes,
                                       double temperature, uint64_t seed);

}  // namespace cohort
