#pragma once
// Local steps: every data-parallel worker trains by itself on its share of the batches, and the workers exchange their changes once in H
// steps, whole or a fragment at a time. The caller decides which steps end a round (StepOptions::exchange). Algorithm: local_steps.cpp.

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

/// Nesterov momentum on the averaged change of the weights; rate 1 without momentum is plain averaging.
struct OuterOptimizer {
  double rate = 0.7, momentum = 0.9;

  UpdateRule rule() const;
  /// Set for sync=diloco only.
  static std::optional<OuterOptimizer> of(const SyncMode& sync, double rate, double momentum);
};

struct LocalStepsOptions {
  UpdateRule rule;                      ///< For a worker's own steps.
  std::optional<OuterOptimizer> outer;  ///< None: the weights become the workers' average.
  std::string compress = "none";        ///< For changes of type Float; see parallel/compress/compressor.h.
  uint64_t seed = 1;                    ///< Of compressors.
  int64_t steps = 1;                    ///< Per round, H.
  int fragments = 1;                    ///< F; at most `steps`.
};

/// Between exchanges no call sends a message, and weights, buffers and optimizer state are this worker's own. After a round weights and
/// buffers are bitwise equal on all workers until the next zero_grad(): with fragments the module then holds each one's last exchanged
/// values, and afterwards the worker's own weights again. Control numbers stay local. Checkpoints and evaluations belong right after a
/// round.
class LocalSteps : public Strategy {
 public:
  /// Collective: all start with rank 0's weights. Error(kFailed) where the ranks' models differ.
  LocalSteps(torch::nn::Module& module, Group group, const LocalStepsOptions& options);

  void zero_grad() override;
  void set_gradient_factor(double factor) override { inner_.set_gradient_factor(factor); }
  void set_sync(bool) override {}
  /// The weights of changes and buffers follow from set_samples().
  void set_buffer_share(double) override {}
  void set_samples(int64_t mine, int64_t all) override;
  void set_control(int slot, float value) override { inner_.set_control(slot, value); }
  float control_sum(int slot) const override { return inner_.control_sum(slot); }
  void exchange_without_backward() override {}
  void finish_backward() override {}
  /// Drops this worker's step only.
  void abandon_step() override;
  StepOutcome step(const StepOptions& options) override;
  void load_weights() override;
  const ExchangeStatistics& statistics() const override { return statistics_; }
  MemoryForecast memory_forecast() const override;
  std::vector<FlatPiece> saved_pieces() override { return pieces(/*saving=*/true); }
  std::vector<FlatPiece> loaded_pieces() override { return pieces(/*saving=*/false); }
  void loaded() override;

 private:
  /// The part of one fragment that has one type, in host memory.
  struct Changes {
    int fragment = 0;
    std::vector<FragmentPiece> pieces;  ///< Slices of trained_.
    at::Tensor flat;                    ///< Their changes, concatenated.
    std::vector<at::Tensor> places;     ///< Aliases of `flat`, one per slice.
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
  Replicated inner_;  ///< Over this rank only.
  std::optional<BufferAverage> buffers_;
  std::vector<at::Tensor> anchors_;  ///< One per trained parameter: its value after the last exchange, 1-d in host memory.
  std::vector<Changes> changes_;     ///< One per fragment and type.
  std::optional<ShardOptimizer> outer_;
  double outer_rate_ = 1;
  int64_t steps_, done_ = 0;     ///< Per round, and made in this one.
  Window step_;                  ///< This step's,
  std::vector<Window> windows_;  ///< and one per fragment.
  at::Tensor saved_windows_;     ///< Their image for checkpoints.
  bool is_whole_ = false;        ///< The module has the anchors' values and vice versa.
  ExchangeStatistics statistics_;
};

}  // namespace cohort
