#pragma once
// Local steps: every data-parallel worker trains by itself on its own share of the batches, and the workers exchange what they learnt once
// in H steps, all of it or a fragment at a time. Which steps end a round of H the caller says (StepOptions::exchange). local_steps.cpp has
// the algorithm.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/job/specs/sync_mode.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/parallel/compress/compressor.h"
#include "cohort/parallel/local/fragments.h"
#include "cohort/parallel/strategy/buffer_average.h"
#include "cohort/parallel/strategy/replicated.h"
#include "cohort/parallel/strategy/strategy.h"

namespace cohort {

/// Nesterov's momentum on the averaged change of the weights; rate 1 with momentum 0 is their average.
struct OuterOptimizer {
  double rate = 0.7, momentum = 0.9;

  UpdateRule rule() const;
  /// What `sync` has: none, but of sync=diloco.
  static std::optional<OuterOptimizer> of(const SyncMode& sync, double rate, double momentum);
};

struct LocalStepsOptions {
  UpdateRule rule;                      ///< Of a worker's own steps.
  std::optional<OuterOptimizer> outer;  ///< None: the weights become the workers' average.
  std::string compress = "none";        ///< Of the change of weights of type Float; see parallel/compress/compressor.h.
  uint64_t seed = 1;                    ///< Of what a compressor draws.
  int64_t steps = 1;                    ///< Of a round, H.
  int fragments = 1;                    ///< Exchanged in turn, F; at most `steps`.
};

/// Between exchanges no call sends a message, and weights, buffers and the optimizer's state are this worker's own; after a round weights
/// and buffers are the same bits on all, until the next zero_grad(): with fragments the module holds what was exchanged of each last, and
/// then each worker's own weights again. Control numbers stay this worker's. Checkpoints and evaluations belong right after a round.
class LocalSteps : public Strategy {
 public:
  /// Collective: all start with the weights of rank 0. Error(kFailed) where the ranks' models differ.
  LocalSteps(torch::nn::Module& module, Group group, const LocalStepsOptions& options);

  void zero_grad() override;
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
  /// Of one fragment all that is of one type, in the host's memory.
  struct Changes {
    int fragment = 0;
    std::vector<FragmentPiece> pieces;  ///< Of trained_.
    at::Tensor flat;                    ///< Each one's change after the other.
    std::vector<at::Tensor> places;     ///< Aliases of `flat`, one a piece.
    std::unique_ptr<Compressor> compressor;
  };
  /// Samples since a fragment's last exchange.
  struct Window {
    int64_t mine = 0, all = 0;
  };
  bool exchanges() const { return group_.size() > 1 || outer_; }
  bool has_fragments() const { return windows_.size() > 1 && !anchors_.empty(); }
  void plan(const LocalStepsOptions& options);
  Changes changes_of(int fragment, at::ScalarType type, const LocalStepsOptions& options);
  void start_from_weights();
  void exchange(int fragment);
  void sum_changes(Changes& changes, double share);
  void apply(const FragmentPiece& piece, const at::Tensor& change);
  void show(bool whole);
  void write_windows(bool saving);
  std::vector<FlatPiece> pieces(bool saving);

  torch::nn::Module& module_;
  Group group_;
  std::vector<NamedTensor> trained_;
  Replicated inner_;  ///< Over this rank alone.
  std::optional<BufferAverage> buffers_;
  std::vector<at::Tensor> anchors_;  ///< One a trained parameter: its value after the last exchange, 1-d in the host's memory.
  std::vector<Changes> changes_;     ///< One a fragment and type.
  std::optional<ShardOptimizer> outer_;
  double outer_rate_ = 1;
  int64_t steps_, done_ = 0;     ///< Of a round, and those of this one.
  Window step_;                  ///< Of this step,
  std::vector<Window> windows_;  ///< and one a fragment.
  at::Tensor saved_windows_;     ///< Of them for checkpoints.
  bool is_whole_ = false;        ///< The module has the anchors' values, and they have this worker's own.
  ExchangeStatistics statistics_;
};

}  // namespace cohort
