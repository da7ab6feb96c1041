#pragma once
// A trial on one rank of its team: the optimizer and learning rate by its parameters, one training step, and evaluation.

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
#include "cohort/models/graph/step_context.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/study/spec/spec.h"
#include "cohort/trials/dense_chain.h"
#include "cohort/trials/trial_data.h"
#include "cohort/trials/trial_weights.h"

namespace cohort {

class LayerGraph;

struct TrialSchedule {
  UpdateRule rule;
  /// Constant, or linear down to a part of the rate, which is then kept (Shallue et al. 2019, section 4, without warm-up). It has its own
  /// end: at(step, 0).
  LearningRate learning_rate;
  double label_smoothing = 0;
  std::string label_smoothing_over = "all";  ///< See Config.
  double average_decay = 0;                  ///< Decay of the weight average that is evaluated; 0: no average.
};

/// Names are study::trial_parameters(). decay_fraction is a part of `train_steps`; decay_steps has precedence. Error(kBadInput) for invalid
/// values: a learning rate that is not positive, momentum or betas outside of [0, 1), negative numbers, a label smoothing outside of [0,
/// 1].
TrialSchedule trial_schedule(const study::StudySpec& spec, const study::Parameters& parameters, int64_t train_steps);

struct TrialStepOptions {
  int64_t max_microbatch = 0;  ///< > 0: samples that this rank computes at once (more if the model's granularity needs it).
  bool use_dense_chain = true;
};

/// Runs any number of trials of one model, one after the other. One thread; the data must outlive it.
class TrialStep {
 public:
  /// Sets LibTorch to one thread.
  TrialStep(const TrialData& data, const Group& team, TrialStepOptions options);

  /// Begins a trial. Collective over the team. Error(kBadInput) if a full batch leaves a rank without samples.
  void begin(std::shared_ptr<LayerGraph> model, const TrialSchedule& schedule, int64_t batch_size, uint64_t seed);

  struct Result {
    double loss = 0;    ///< Mean over the batch, label smoothing included; the same on all ranks, as `stop` is.
    bool stop = false;  ///< Some rank requested a stop.
  };
  /// Loss and gradient of step `number`, counted from 0. Collective. Changes the model's running statistics, not its weights.
  Result compute(int64_t number, bool wants_stop);
  /// Applies the gradient of compute().
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
  /// Loss and gradient of the samples in batch_; gradients add to those that are there.
  double autograd(double weight, const StepContext& context);
  void collect_gradients();
  Result exchange(double loss, bool wants_stop, double share);

  const TrialData& data_;
  Group team_;
  TrialStepOptions options_;
  std::shared_ptr<LayerGraph> model_;
  TrialSchedule schedule_;
  TrialWeights weights_;
  std::vector<NamedTensor> buffers_;
  std::unique_ptr<DenseChain> chain_;
  std::optional<bool> chain_agrees_;  // Unknown before the first trial.
  std::optional<Sampler> sampler_;
  TrialBatch batch_;
  std::optional<ByteBatch> byte_batch_;  // If the data have bytes.
  int64_t num_pieces_ = 1, pieces_batch_ = -1;
  std::vector<Share> pieces_;
  uint64_t seed_ = 0;
  // The gradient, followed by loss, stop request, marks of segments that have a gradient, and buffers. A team of one uses it only for the
  // chain, since gradients of autograd are used in place.
  at::Tensor flat_;
};

struct TrialEvaluation {
  double loss = 0;   ///< Mean cross-entropy over all targets, without label smoothing.
  double error = 0;  ///< Part of targets whose most likely class is wrong, or of labels whose score is on the wrong side of 0.
  double precision = std::numeric_limits<double>::quiet_NaN();  ///< Mean average precision of labels; else NaN.
};

/// The number of `target` {targets} that are not the most likely class (the first of equal ones) of `logits` {targets, classes}, floats;
/// targets outside of the classes count too. One pass over the logits.
int64_t count_wrong_targets(const at::Tensor& logits, const at::Tensor& target);

/// Evaluates the first `num_samples` samples. Collective; the same bits on every rank and for every size of the team, since chunks do not
/// depend on it and their sums are added in order. A `chain` that is not null computes instead of `model`, which is in eval mode meanwhile.
TrialEvaluation evaluate_trial(LayerGraph& model, DenseChain* chain, const TrialSamples& samples, int64_t num_samples, Group& team);

}  // namespace cohort
