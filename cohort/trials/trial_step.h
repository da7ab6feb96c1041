#pragma once
// A trial on one rank of its team: what its parameters say about optimizer and learning rate, one step, and loss and error over many
// samples.

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

// What a trial's parameters say about its optimizer and learning rate.

struct TrialSchedule {
  UpdateRule rule;
  /// Constant, or linear down to a part of the rate, which then stays (Shallue et al. 2019, section 4: no warm-up there). Knows its own
  /// end: at(step, 0).
  LearningRate learning_rate;
  double label_smoothing = 0;
  std::string label_smoothing_over = "all";  ///< As in train.
  double average_decay = 0;                  ///< Of the average of the weights that is evaluated; 0: the weights are.
};

/// Names are study::trial_parameters(). decay_fraction is a part of `train_steps`; decay_steps rules where both are given. Error(kBadInput)
/// for values that mean nothing: a learning rate that is not positive, momentum or betas outside of [0, 1), negative numbers, a label
/// smoothing outside of [0, 1].
TrialSchedule trial_schedule(const study::StudySpec& spec, const study::Parameters& parameters, int64_t train_steps);

// One step of a trial on one rank of its team: gather, gradient, exchange, update.

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

// Loss and error of a trial's model over many samples, divided over its team.

struct TrialEvaluation {
  double loss = 0;   ///< Mean cross-entropy over all targets, without label smoothing.
  double error = 0;  ///< Share of targets whose likeliest class is wrong; of labels, whose score is on the wrong side of 0.
  double precision = std::numeric_limits<double>::quiet_NaN();  ///< Of labels the mean average precision; else NaN.
};

/// Of `logits` {targets, classes}, floats, and `target` {targets}: how many have another likeliest class (the first of equals); also those
/// outside of the classes. One pass over the logits.
int64_t count_wrong_targets(const at::Tensor& logits, const at::Tensor& target);

/// The first `num_samples` samples. Collective; the same bits on every rank and, for equal weights, for every size of the team: chunks do
/// not depend on it and their sums are added in order. `chain`, where not null, computes instead of `model`, which is in eval mode
/// meanwhile.
TrialEvaluation evaluate_trial(LayerGraph& model, DenseChain* chain, const TrialSamples& samples, int64_t num_samples, Group& team);

}  // namespace cohort
