#pragma once
// sync=local and diloco without ranks: what N workers that train by themselves between exchanges hold, one after the other in one process.
// Between two rounds all have the same weights, so only their optimizers are kept apart.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/parallel/local/local_steps.h"
#include "cohort/parallel/optimizer/shard_optimizer.h"
#include "cohort/train/async/async_mode.h"
#include "cohort/train/async/push_optimizer.h"

namespace cohort {

/// One thread. Weights and buffers of `module` are those of the last exchange, but from begin() to end() of a worker.
class LocalModels : public AsyncModel {
 public:
  LocalModels(const torch::nn::Module& module, const UpdateRule& rule, const std::optional<OuterOptimizer>& outer, int num_workers);

  /// A round of those that take part: `samples` of each worker that ends it, 0 of the others; they add up to more than 0.
  void begin_round(const std::vector<int64_t>& samples);
  /// The worker's part, in rising order of workers: begin(), step() once a ticket, end().
  void begin(int worker);
  /// The result of a ticket's forward and backward. Returns the gradient's norm before clipping, 0 without.
  double step(int worker, const Ticket& ticket, TicketResult result, const StepNumbers& numbers);
  void end(int worker);
  /// The exchange.
  void end_round();
  /// The worker begins anew, as one that was restarted.
  void forget(int worker);

  void show() override {}
  int64_t pull_bytes() const override { return model_.num_bytes; }
  int64_t push_bytes() const override { return model_.num_bytes; }
  int64_t bytes_in_flight() const override;

  std::vector<FlatPiece> saved_pieces() override;
  Json state() const override;
  std::vector<FlatPiece> loaded_pieces(const Json& state, const std::string& where) override;
  void loaded(const Json& state) override;

 private:
  std::vector<FlatPiece> pieces(bool saving);

  ServedModel model_;
  UpdateRule rule_;
  std::vector<PushOptimizer> optimizers_;                           // One a worker.
  std::vector<at::Tensor> anchors_, changes_, buffers_, averages_;  // Of the last exchange; sums of this round. Weights and buffers.
  std::vector<double> shares_;
  std::optional<ShardOptimizer> outer_;
  double outer_rate_ = 1;
  bool is_first_ = true;
};

}  // namespace cohort
