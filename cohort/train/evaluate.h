#pragma once
// Validation: every rank takes its share of the samples, the sums are exchanged.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/data/source.h"
#include "cohort/models/layer_graph.h"

namespace cohort {

struct Evaluation {
  double loss = 0;   ///< Mean cross-entropy (nats) over all targets.
  double error = 0;  ///< Share of targets whose likeliest class is wrong.
  int64_t num_targets = 0;
  std::vector<std::vector<int64_t>> confusion;  ///< [true class][predicted class]; only when asked for.
};

/// Collective; the same result on every rank. Leaves the model in the mode (train or eval) in which it was. `finish` runs after this rank's
/// last forward and before the ranks exchange their sums.
Evaluation evaluate(LayerGraph& model, const DataSource& source, Group& group, int64_t batch, bool with_confusion,
                    const std::function<void()>& finish = {});

/// The first bytes of a source of text, at most `num_bytes`.
std::string first_text(const DataSource& source, size_t num_bytes);

/// `num_bytes` bytes that follow `prompt` when each next byte is drawn from the model's distribution at `temperature`; deterministic by
/// seed. For models of text with the context that `source` has.
std::string sample_text(LayerGraph& model, const DataShape& shape, const std::string& prompt, int64_t num_bytes, double temperature,
                        uint64_t seed);

}  // namespace cohort
