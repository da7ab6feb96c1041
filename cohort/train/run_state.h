#pragma once
// Saving a run and going on from where it was: weights, buffers, optimizer state, position in the data. Everything random is a function of
// (seed, step), so there is no generator state to save. Files: docs/formats/checkpoint.md.

#include <cstdint>
#include <string>

#include "cohort/base/config.h"
#include "cohort/base/layout.h"
#include "cohort/comm/group.h"
#include "cohort/models/layer_graph.h"
#include "cohort/train/optimizer.h"

namespace cohort {

class RunState {
 public:
  /// References must outlive the object.
  RunState(const Config& config, const Layout& layout, LayerGraph& model, Optimizer& optimizer, Group& group, int64_t num_train_samples);

  /// Collective. Writes RUN/checkpoints/step-...; rank 0 does the writing. Returns the path (rank 0) or "". Error(kFailed) on every rank
  /// when it cannot.
  std::string save(int64_t step);
  /// Collective. Loads the newest valid checkpoint of RUN; returns its step. Error(kBadInput) on every rank when there is none or it is of
  /// another model, optimizer, data size, global batch or seed.
  int64_t load_latest();

 private:
  void load_on_rank_0(int64_t& step);
  std::vector<NamedTensor> all_tensors() const;
  void same_outcome_everywhere(const std::string& failure, const std::string& what);

  const Config& config_;
  const Layout& layout_;
  LayerGraph& model_;
  Optimizer& optimizer_;
  Group& group_;
  int64_t num_train_samples_;
};

}  // namespace cohort
