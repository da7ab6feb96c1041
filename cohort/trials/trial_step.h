#pragma once
// A trial on one rank of its team: its optimizer and learning rate schedule, one step, and its evaluation.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/data/sampler.h"
#include "cohort/job/learning_rate.h"
#include "cohort/job/update_rule.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/study/spec/spec.h"
#include "cohort/trials/dense_chain.h"
#include "cohort/trials/trial_data.h"
#include "cohort/trials/trial_weights.h"

namespace cohort {

class LayerGraph;

/// The optimizer and the schedules of a trial, from its parameters.
struct TrialSchedule {
  UpdateRule rule;
  /// Constant, or decaying linearly to a part of the rate, then constant (Shallue et al. 2019, section 4, without warm-up). Call at(step,
  /// 0).
  LearningRate learning_rate;
  double label_smoothing = 0;
  std::string label_smoothing_over = "all";  ///< As in train.
  double average_decay = 0;                  ///< Decay of the average of the weights that is evaluated; 0: the weights are evaluated.
};

/// Names are study::trial_parameters(). decay_fraction is relative to `train_steps`; decay_steps has priority. Error(kBadInput) for values
/// out of range: a learning rate that is not positive, momentum or betas outside of [0, 1), negative numbers, a label
/// smoothing outside of [0, 1].
TrialSchedule trial_schedule(const study::StudySpec& spec, const study::Parameters& parameters, int64_t train_steps);

struct TrialStepOptions {
  int64_t max_microbatch = 0;  ///< > 0: this rank computes at most N samples at once (more where the model's sample granularity requires).
  bool use_dense_chain = true;
};

/// The steps of a trial on one rank of its team: gather, gradient, exchange, update. Runs any number of trials of one model sequentially,
/// on one thread; the data must outlive it.
class TrialStep {
 public:
  /// Sets LibTorch to one thread.
  TrialStep(const TrialData& data, const Group& team, TrialStepOptions options);

  /// Starts a trial. Collective over the team. Error(kBadInput) where a full batch leaves a rank without samples.
  void begin(std::shared_ptr<LayerGraph> model, const TrialSchedule& schedule, int64_t batch_size, uint64_t seed);

  struct Result {
    double loss = 0;    ///< Mean over the batch, label smoothing included; the same on all ranks, as `stop` is.
    bool stop = false;  ///< Some rank requested a stop.
  };
  /// Computes loss and gradient of step `number` (from 0). Collective. Does not change weights, but the model's running statistics.
  Result compute(int64_t number, bool wish_stop);
  /// Applies the gradient of compute().
  void update(int64_t number);

  LayerGraph& model() { return *model_; }
  TrialWeights& weights() { return weights_; }
  std::vector<NamedTensor>& buffers() { return buffers_; }  ///< Floating-point buffers: running statistics.
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
  std::optional<bool> chain_agrees_;  // Whether the chain computes what this model does; unknown before the first trial.
  std::optional<Sampler> sampler_;
  TrialBatch batch_;
  std::optional<ByteBatch> byte_batch_;  // Set where the data has bytes.
  int64_t num_pieces_ = 1, pieces_batch_ = -1;
  std::vector<Share> pieces_;
  uint64_t seed_ = 0;
  // The gradient, followed by what is exchanged with it: loss, stop request, which segments have a gradient, buffers. A single rank uses it
  // only with the chain; autograd's gradients are used in place.
  at::Tensor flat_;
};

/// Results over many samples.
struct TrialEvaluation {
  double loss = 0;   ///< Mean cross-entropy over all targets, without label smoothing.
  double error = 0;  ///< Share of wrong targets: whose likeliest class is wrong; for labels, whose score has the wrong sign.
  double precision = std::numeric_limits<double>::quiet_NaN();  ///< Mean average precision for labels; else NaN.
};

/// Number of targets that are not the likeliest class (the first of equals) or are out of range, for float `logits` {targets, classes} and
/// `target` {targets}. One pass over the logits.
int64_t count_wrong_targets(const at::Tensor& logits, const at::Tensor& target);

/// Evaluates the first `num_samples` samples, divided over the team. Collective; the same bits on every rank and for every team size, as
/// chunks do not depend on it and their sums are added in order. A `chain` that is not null computes instead of `model`, which is in eval
/// mode meanwhile.
TrialEvaluation evaluate_trial(LayerGraph& model, DenseChain* chain, const TrialSamples& samples, int64_t num_samples, Group& team);

}  // namespace cohort
