#pragma once
// Local steps: every data-parallel worker trains by itself on its own share of the batches, and the workers exchange what they learnt once
// in H steps. Which steps are followed by an exchange the caller says (StepOptions::exchange). local_steps.cpp has the algorithm.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/parallel/buffer_average.h"
#include "cohort/parallel/compress/compressor.h"
#include "cohort/parallel/parameters.h"
#include "cohort/parallel/replicated.h"
#include "cohort/parallel/strategy.h"

namespace cohort {

/// Nesterov's momentum on the averaged change of the weights; rate 1 with momentum 0 is their average.
struct OuterOptimizer {
  double rate = 0.7, momentum = 0.9;
};

struct LocalStepsOptions {
  UpdateRule rule;                      ///< Of a worker's own steps.
  std::optional<OuterOptimizer> outer;  ///< None: the weights become the workers' average.
  std::string compress = "none";        ///< Of the change of weights of type Float; see parallel/compress/compressor.h.
  uint64_t seed = 1;                    ///< Of what a compressor draws.
};

/// Between exchanges no call sends a message, and weights, buffers and the optimizer's state are this worker's own; after one, weights and
/// buffers are the same bits on all. Control numbers stay this worker's. Checkpoints and evaluations belong right after an exchange.
class LocalSteps : public Strategy {
 public:
  /// Collective: all start with the weights of rank 0. Error(kFailed) where the ranks' models differ.
  LocalSteps(torch::nn::Module& module, Group group, const LocalStepsOptions& options);

  void zero_grad() override { inner_.zero_grad(); }
  void set_gradient_factor(double factor) override { inner_.set_gradient_factor(factor); }
  void set_sync(bool) override {}
  /// What a worker's change and buffers weigh follows from set_samples().
  void set_buffer_share(double) override {}
  void set_samples(int64_t mine, int64_t all) override;
  void set_control(int slot, float value) override { inner_.set_control(slot, value); }
  float control_sum(int slot) const override { return inner_.control_sum(slot); }
  void exchange_without_backward() override {}
  void finish_backward() override {}
  /// This worker's step alone is dropped.
  void abandon_step() override;
  StepOutcome step(const StepOptions& options) override;
  void load_weights() override;
  const ExchangeStatistics& statistics() const override { return statistics_; }
  MemoryForecast memory_forecast() const override;
  std::vector<FlatPiece> saved_pieces() override { return pieces(/*saving=*/true); }
  std::vector<FlatPiece> loaded_pieces() override { return pieces(/*saving=*/false); }
  void loaded() override;

 private:
  /// All trained parameters of one type, in the host's memory.
  struct Changes {
    std::vector<size_t> parameters;  ///< Indices into trained_.
    at::Tensor flat;                 ///< Each one's change after the other.
    std::vector<at::Tensor> places;  ///< Aliases of `flat`, one a parameter.
    std::unique_ptr<Compressor> compressor;
  };
  bool exchanges() const { return group_.size() > 1 || outer_; }
  void plan(const LocalStepsOptions& options);
  void start_from_weights();
  void exchange();
  void sum_changes(Changes& changes, double share);
  void apply(size_t parameter, const at::Tensor& change);
  std::vector<FlatPiece> pieces(bool saving);

  torch::nn::Module& module_;
  Group group_;
  std::vector<NamedTensor> trained_;
  Replicated inner_;  ///< Over this rank alone.
  std::optional<BufferAverage> buffers_;
  std::vector<at::Tensor> anchors_;  ///< One a trained parameter: its value after the last exchange, 1-d in the host's memory.
  std::vector<Changes> changes_;     ///< One a type.
  std::optional<ShardOptimizer> outer_;
  double outer_rate_ = 1;
  int64_t step_mine_ = 0, step_all_ = 0;    ///< Samples of this step,
  int64_t round_mine_ = 0, round_all_ = 0;  ///< and since the last exchange.
  ExchangeStatistics statistics_;
};

}  // namespace cohort
