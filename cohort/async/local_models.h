#pragma once
// sync=local and diloco without ranks: what N workers that train by themselves between exchanges hold, one after the other in one process.
// Between two rounds all have the same weights, so only their optimizers are kept apart; with fragments in turn their weights too.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/async/async_mode.h"
#include "cohort/async/push_optimizer.h"
#include "cohort/parallel/local/fragments.h"
#include "cohort/parallel/local/local_steps.h"
#include "cohort/parallel/optimizer/shard_optimizer.h"

namespace cohort {

/// One thread. Weights and buffers of `module` are those that were exchanged last, but from begin() to end() of a worker.
class LocalModels : public AsyncModel {
 public:
  LocalModels(const torch::nn::Module& module, const UpdateRule& rule, const std::optional<OuterOptimizer>& outer, int num_workers,
              int num_fragments = 1);
  int num_fragments() const { return num_fragments_; }

  /// A part of a round, up to the exchange of that fragment (from 0; the last one ends the round), of those that take part: `samples` of
  /// each worker that ends it, none of the others. With those of the parts since the fragment's last exchange they add up to more than 0.
  void begin_part(int fragment, const std::vector<std::optional<int64_t>>& samples);
  /// The worker's part, in rising order of workers: begin(), step() once a ticket, end().
  void begin(int worker);
  /// The result of a ticket's forward and backward. Returns the gradient's norm before clipping, 0 without.
  double step(int worker, const Ticket& ticket, TicketResult result, const StepNumbers& numbers);
  void end(int worker);
  /// The exchange.
  void end_part();
  /// The worker begins anew, as one that was restarted.
  void forget(int worker);
  /// Of the exchange of one fragment.
  int64_t exchanged_bytes(int fragment) const;

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

  struct Part {
    int fragment = 0;
    std::vector<FragmentPiece> pieces;
    std::vector<double> shares;  ///< One a worker, of what is exchanged.
    bool ends_round = true;
    bool is_first = true;  ///< Nobody's change was added yet.
  };
  /// What a worker has for itself; nothing where it is to begin with what was exchanged last.
  struct Own {
    std::vector<at::Tensor> weights, buffers;
  };
  bool has_fragments() const { return num_fragments_ > 1; }
  std::vector<FragmentPiece> pieces_of(int fragment) const;
  void add_own(size_t worker, bool saving, std::vector<FlatPiece>& out);

  ServedModel model_;
  UpdateRule rule_;
  int num_fragments_;
  std::vector<PushOptimizer> optimizers_;                           // One a worker.
  std::vector<at::Tensor> anchors_, changes_, buffers_, averages_;  // Of the last exchange; sums of this part. Weights and buffers.
  Part part_;
  std::vector<Own> own_;                       // One a worker; with fragments alone.
  std::vector<std::vector<int64_t>> windows_;  // Of each fragment, each worker's samples since its last exchange.
  std::vector<at::Tensor> saved_windows_;      // Of them for checkpoints, one a worker.
  std::optional<ShardOptimizer> outer_;
  double outer_rate_ = 1;
};

}  // namespace cohort
