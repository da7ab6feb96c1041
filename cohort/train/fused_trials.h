#pragma once
// Several trials of one model trained at once: their weights stand in one tensor each, a layer is one batched operation. Whether that pays
// is measured (fusion_probe.h); on a CPU it mostly does not (docs/algorithms/trial_loop.md).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/data/sampler.h"
#include "cohort/models/layer_graph.h"
#include "cohort/study/spec.h"
#include "cohort/study/trial_runner.h"
#include "cohort/train/trial_data.h"
#include "cohort/train/trial_schedule.h"

namespace cohort {

/// Trials of one batch size; each has its own seed (weights, data order), learning rate, schedule and optimizer numbers. One thread; the
/// data must outlive it.
class FusedTrials {
 public:
  /// Whether every layer is one that can be fused: linear, conv2d (without groups), relu, flatten, maxpool2d, in a chain, nothing frozen or
  /// tied.
  static bool can_fuse(const LayerGraph& model);

  /// Sets LibTorch to one thread. Error(kBadInput) for a model that can not be fused, no orders, orders of different batch sizes, or
  /// different label smoothing.
  FusedTrials(const study::StudySpec& spec, const TrialData& data, const std::vector<study::TrialOrder>& orders);

  /// One step of all trials. A trial whose loss is not finite or above spec.diverged_above has ended: its weights stay from then on, and
  /// the others are not touched by it.
  void step();

  size_t num_trials() const { return trials_.size(); }
  bool is_alive(size_t trial) const { return trials_[trial].alive; }
  int64_t steps(size_t trial) const { return trials_[trial].steps; }  ///< Updates done.
  double loss(size_t trial) const { return trials_[trial].loss; }     ///< Of the last step.
  /// Of one trial, in the order and shape in which the model has its parameters.
  std::vector<at::Tensor> weights(size_t trial) const;

 private:
  struct OneTrial {
    TrialSchedule schedule;
    Sampler sampler;
    bool alive = true;
    int64_t steps = 0;
    double loss = 0;
  };
  struct Parameter {
    at::Tensor stacked;             ///< {trials, ...}
    std::vector<at::Tensor> slots;  ///< Of the optimizer, alike.
  };
  at::Tensor forward(at::Tensor x) const;
  void gather(int64_t number);
  void update(const Parameter& parameter, size_t trial);

  const TrialData& data_;
  double diverged_above_;
  std::vector<OneTrial> trials_;
  std::shared_ptr<LayerGraph> model_;  // Of the first trial: the chain of layers.
  std::vector<Parameter> parameters_;  // In the order of the model's.
  TrialBatch batch_;
  int64_t number_ = 0;
};

}  // namespace cohort
