#pragma once
// Measures the gradient noise scale of a training from gradient norms, without changing the step.
// docs/algorithms/noise_scale.md.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/comm/group.h"
#include "cohort/job/config.h"
#include "cohort/job/layout.h"
#include "cohort/parallel/strategy/strategy.h"
#include "cohort/record/step_records.h"
#include "cohort/study/noise/noise_scale.h"

namespace cohort {

struct NoiseMeterOptions {
  int64_t every = 1;  ///< Steps between measurements.
  /// With compression, measuring steps also exchange the uncompressed gradient.
  bool exchange_exactly = false;
};

/// One per model and rank; model and strategy must outlive it. One thread: the one that trains. Takes two of the strategy's control slots.
class NoiseMeter {
 public:
  static constexpr int kSquaresSlot = 2, kPiecesSlot = 3;

  /// `group`: the ranks of the strategy.
  NoiseMeter(const torch::nn::Module& model, Strategy& strategy, Group group, NoiseMeterOptions options);
  ~NoiseMeter();
  NoiseMeter(const NoiseMeter&) = delete;

  /// Called before a step's backward passes; `number` counts from 0, and all ranks measure the same steps. The losses of the step are
  /// multiplied by (samples of the micro-batch / global_samples / gradient_factor).
  void begin_step(int64_t number, int64_t global_samples, double gradient_factor);
  /// Called before each backward() with the samples of its loss; 0: it is not measured.
  void begin_piece(int64_t samples);
  /// The clip_norm for Strategy::step(): clipping by infinity makes it compute the norm and changes nothing.
  double clip_norm(double asked) const;
  /// Called after Strategy::step(); collective. The measurement, the same on all ranks; none in other steps, for a single micro-batch, or
  /// where a gradient was not finite.
  std::optional<NoiseRecord> end_step(const StepOutcome& outcome);

  const study::RecentNoiseScale& recent() const { return recent_; }
  /// The averages, for checkpoints.
  Json state() const;
  void load(const Json& state);

 private:
  void on_gradient(size_t parameter, const at::Tensor& gradient);
  double exact_squared_norm();

  Strategy& strategy_;
  Group group_;
  NoiseMeterOptions options_;
  std::vector<at::Tensor> parameters_;
  std::vector<unsigned> hooks_;
  std::vector<int64_t> offsets_;  // In sums_.
  at::Tensor sums_;               // With exchange_exactly: this rank's term of the mean gradient, flat, in float.
  study::RecentNoiseScale recent_;

  int64_t step_ = 0, global_samples_ = 0, num_pieces_ = 0;
  bool measures_ = false, in_piece_ = false;
  double gradient_factor_ = 1, piece_weight_ = 0, squares_ = 0;
};

}  // namespace cohort
