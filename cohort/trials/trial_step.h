#pragma once
// One step of a trial on one rank of its team: gather, gradient, exchange, update.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/data/sampler.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/trials/dense_chain.h"
#include "cohort/trials/trial_data.h"
#include "cohort/trials/trial_schedule.h"
#include "cohort/trials/trial_weights.h"

namespace cohort {

class LayerGraph;

struct TrialStepOptions {
  int64_t max_microbatch = 0;  ///< > 0: this rank computes at most N samples at once (more where the model's granularity asks).
  bool use_dense_chain = true;
};

/// Serves any number of trials of one model, one after the other. One thread; the data must outlive it.
class TrialStep {
 public:
  /// Sets LibTorch to one thread.
  TrialStep(const TrialData& data, const Group& team, TrialStepOptions options);

  /// A fresh trial. Collective over the team. Error(kBadInput) where a full batch leaves a rank without samples.
  void begin(std::shared_ptr<LayerGraph> model, const TrialSchedule& schedule, int64_t batch_size, uint64_t seed);

  struct Result {
    double loss = 0;    ///< Mean over the batch, label smoothing included; the same on all ranks, as `stop` is.
    bool stop = false;  ///< A rank wished it.
  };
  /// Loss and gradient of step `number` (from 0). Collective. Weights stay; the model's running statistics move.
  Result compute(int64_t number, bool wish_stop);
  /// Applies the gradient that compute() left.
  void update(int64_t number);

  LayerGraph& model() { return *model_; }
  TrialWeights& weights() { return weights_; }
  std::vector<NamedTensor>& buffers() { return buffers_; }  ///< Floats: running statistics.
  bool uses_dense_chain() const { return chain_ != nullptr; }

 private:
  void make_chain();
  bool chain_agrees();
  void make_flat();
  const std::vector<Share>& pieces_of(int64_t batch);
  double gradient_of(const Share& piece, int64_t number, int64_t batch, bool accumulate);
  double autograd(double weight);
  void collect_gradients();
  Result exchange(double loss, bool wish_stop, double share);

  const TrialData& data_;
  Group team_;
  TrialStepOptions options_;
  std::shared_ptr<LayerGraph> model_;
  TrialSchedule schedule_;
  TrialWeights weights_;
  std::vector<NamedTensor> buffers_;
  std::unique_ptr<DenseChain> chain_;
  std::optional<bool> chain_agrees_;  // Of this model; not known before the first trial.
  std::optional<Sampler> sampler_;
  TrialBatch batch_;
  std::optional<ByteBatch> byte_batch_;  // Where the data have bytes.
  int64_t num_pieces_ = 1, pieces_batch_ = -1;
  std::vector<Share> pieces_;
  uint64_t seed_ = 0;
  // Gradient, then what travels with it: loss, wish to stop, which segments have a gradient, buffers. A team of one has it for the chain
  // alone: gradients of autograd are used where they are.
  at::Tensor flat_;
};

}  // namespace cohort
