#pragma once
// Evaluation of a model over many samples, divided over the ranks, and text sampled from it.

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
  int64_t batch_size = 250;  ///< Samples of a chunk, which runs through the model at once.
  bool with_confusion = false;
  int num_mistakes = 0;  ///< How many of the most confident mistakes are returned; the same on all ranks.
  std::vector<NamedMetric> metrics = {};
  int index = 0, count = 1;      ///< This rank computes chunks index, index + count, ...
  int num_shares = 1;            ///< Ranks that this one computes for; their sums are added in rank order.
  std::function<void()> begin;   ///< Called before this rank's first forward,
  std::function<void()> finish;  ///< and after its last, before ranks exchange sums.
  /// The model's output for this rank's chunk `number` (0, 1, ...), or undefined where another rank counts it. Empty: the model's forward.
  std::function<at::Tensor(int64_t number, const std::function<at::Tensor()>& input)> forward;
};

/// Collective over `group`; the same result on every rank. Restores the model's mode (train or eval).
Evaluation evaluate(LayerGraph& model, const DataSource& source, Group& group, const EvaluationOptions& options);

/// True if the output for the first samples has one score a class for each target (for regression one number, for labels one score), as an
/// error needs.
bool gives_scores(LayerGraph& model, const DataSource& source);

/// The first bytes of a text source, at most `num_bytes`.
std::string first_text(const DataSource& source, size_t num_bytes);

struct TextSampling {
  int64_t num_bytes = 400;
  double temperature = 0.8;  ///< Scores are divided by it; 0: always the most likely token.
  int64_t top_k = 0;         ///< Draws from the k most likely tokens only, of two equal ones the smaller; 0: from all.
  uint64_t seed = 1;
  std::function<void(char)> written = {};                  ///< Called with each byte.
  std::shared_ptr<const Vocabulary> vocabulary = nullptr;  ///< Null: tokens are bytes.
};
/// The bytes that follow `prompt` (empty: a line feed), with each token drawn from the model's distribution; deterministic by seed. The
/// model sees the last tokens that its context holds. None if its output does not have next-token scores.
std::optional<std::string> sample_text(LayerGraph& model, const DataShape& shape, const std::string& prompt, const TextSampling& how);

}  // namespace cohort
