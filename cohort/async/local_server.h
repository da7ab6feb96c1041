#pragma once
// sync=local:H and diloco:H: workers train H steps on their own and exchange how far their weights moved. LocalServer with LocalWorker is
// for a quorum of workers at a server, LocalModels for all workers of a simulated training in one process. local_server.cpp has the
// algorithm.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "cohort/async/async_mode.h"
#include "cohort/async/push_optimizer.h"
#include "cohort/parallel/local/fragments.h"
#include "cohort/parallel/local/local_steps.h"
#include "cohort/parallel/optimizer/shard_optimizer.h"

namespace cohort {

/// Decides when an exchange takes place: once a quorum of workers has pushed and a grace time for the others is over. A value; the caller
/// provides the time.
class QuorumGate {
 public:
  /// `quorum`: from 1.
  QuorumGate(int quorum, double grace_seconds) : quorum_(quorum), grace_seconds_(grace_seconds) {}

  /// One more push has arrived.
  void add(double now) {
    if (++num_pushes_ == quorum_) complete_since_ = now;
  }
  /// The exchange was made.
  void clear() { *this = QuorumGate(quorum_, grace_seconds_); }

  /// `others_pending`: another worker may still push. Without one, the pushes at hand suffice, so that lost workers block nobody.
  bool is_open(double now, bool others_pending) const {
    if (num_pushes_ == 0) return false;
    return !others_pending || (num_pushes_ >= quorum_ && remaining_seconds(now) <= 0);
  }
  /// Remaining grace time; infinite before the quorum is reached.
  double remaining_seconds(double now) const {
    if (num_pushes_ < quorum_) return std::numeric_limits<double>::infinity();
    return complete_since_ + grace_seconds_ - now;
  }

  double complete_since() const { return complete_since_; }
  void restore(int num_pushes, double complete_since) { num_pushes_ = num_pushes, complete_since_ = complete_since; }

 private:
  int quorum_, num_pushes_ = 0;
  double grace_seconds_, complete_since_ = 0;
};

/// The global model and its exchange: weights move by the sum of the workers' weighted changes, or by an outer optimizer's step along it;
/// buffers become the workers' weighted mean (integers: the maximum).
class GlobalModel {
 public:
  /// Copies the weights and buffers of `model`, which must outlive it. Without `outer`, weights move by the mean change.
  GlobalModel(const ModelTensors& model, const std::optional<OuterOptimizer>& outer);
  GlobalModel(const GlobalModel&) = delete;

  void begin_exchange();
  /// One worker's change of a part of a parameter; scales `change` in place.
  void add_change(const FragmentPiece& piece, const at::Tensor& change, double weight);
  void add_buffer(size_t index, const at::Tensor& theirs, double weight);
  void end_worker() { is_first_ = false; }
  void apply(const FragmentPiece& piece);
  void apply_buffers();

  /// State of the outer optimizer, if any.
  std::vector<FlatPiece> pieces(bool saving);
  /// After these pieces and the model's own tensors were loaded.
  void load();

  const std::vector<at::Tensor>& weights() const { return weights_; }
  const std::vector<at::Tensor>& buffers() const { return buffers_; }

 private:
  const ModelTensors& model_;
  std::vector<at::Tensor> weights_, changes_, buffers_, means_;  // Flat; changes_ and means_ belong to the exchange under way.
  std::optional<ShardOptimizer> outer_;
  double outer_rate_ = 1;
  bool is_first_ = true;  // No worker was added yet.
};

struct LocalServerOptions {
  std::optional<OuterOptimizer> outer;  ///< None: the weights move by the mean change.
  int64_t global_batch = 1;             ///< Samples of a step, for lateness.
};

/// The server's half. One thread. `module` receives the global model only by copy_to_module().
class LocalServer : public AsyncMode {
 public:
  LocalServer(const torch::nn::Module& module, const LocalServerOptions& options);

  /// An exchange of several pushes, weighted by their samples and added in this order; outcomes in the same order.
  std::vector<PushOutcome> merge(const std::vector<Assignment*>& pushes);

  void pull(Assignment& assignment) override { version_.mark_pull(assignment); }
  /// `result` holds changes of weights in place of gradients.
  void prepare_push(Assignment& assignment, WorkResult result, const StepNumbers& numbers) override;
  /// An exchange of one push.
  PushOutcome push(Assignment& assignment, const StepNumbers& /*numbers*/) override { return merge({&assignment}).front(); }
  std::vector<at::Tensor> served_tensors() const override { return joined(global_.weights(), global_.buffers()); }
  void copy_to_module() override;

  int64_t version() const override { return version_.version; }
  int64_t pull_bytes() const override { return model_.num_bytes; }

  std::vector<FlatPiece> saved_pieces() override { return global_.pieces(/*saving=*/true); }
  Json state() const override;
  std::vector<FlatPiece> loaded_pieces(const Json& state, const std::string& where) override;
  void loaded(const Json& state) override;
  LocalServer* local_server() override { return this; }

 private:
  LocalServerOptions options_;
  ModelTensors model_;
  GlobalModel global_;
  ModelVersion version_;
};

/// A worker with an optimizer of its own, which nobody else has. `module` must outlive it.
class LocalWorker : public AsyncWorker {
 public:
  LocalWorker(const torch::nn::Module& module, const UpdateRule& rule);

  /// Starting from the pulled weights: begin(), step() for the item of each step, end().
  void begin();
  void step(const WorkItem& item, const WorkResult& result, const StepNumbers& numbers);
  /// The change of weights, in place of gradients; the loss is the mean over the samples.
  WorkResult end();

  const std::vector<at::Tensor>& pull_buffers() const override { return pull_buffers_; }
  /// A round of one step.
  PushData make_push(const WorkItem& item, WorkResult result, const StepNumbers& numbers) override;
  PushData work(const AssignedItem& assigned) override;

  std::vector<FlatPiece> pieces() override { return optimizer_.pieces(model_.trained); }
  void load_counts() override { optimizer_.load_counts(); }

 private:
  PushData end_push();

  ModelTensors model_;
  PushOptimizer optimizer_;
  std::vector<at::Tensor> pull_buffers_, base_;
  double loss_ = 0;  // Sum over samples.
  int64_t samples_ = 0;
};

/// The merged pushes as one, with all their samples.
AppliedPush combined_push(const std::vector<Assignment*>& pushes);

/// All N workers of sync=local or diloco in one process, one after the other. Between rounds they share one set of weights, so only their
/// optimizers are kept apart; with fragments their weights too. One thread. Except between begin() and end() of a worker, `module` holds
/// the global model.
class LocalModels : public AsyncModel {
 public:
  LocalModels(const torch::nn::Module& module, const UpdateRule& rule, const std::optional<OuterOptimizer>& outer, int num_workers,
              int num_fragments = 1);
  int num_fragments() const { return num_fragments_; }

  /// Begins the steps of a round up to the exchange of `fragment` (from 0; the last one ends the round). `samples`: of each worker that
  /// takes part in the exchange, none for the others; since the fragment's last exchange they must add up to more than 0.
  void begin_fragment(int fragment, const std::vector<std::optional<int64_t>>& samples);
  /// The steps of a worker, in rising order of workers: begin(), step() per item, end().
  void begin(int worker);
  /// Applies the result of an item; returns the gradient's norm before clipping, 0 without clipping.
  double step(int worker, const WorkItem& item, const WorkResult& result, const StepNumbers& numbers);
  void end(int worker);
  void exchange_fragment();
  /// Resets the worker's own state, as a restart does.
  void forget(int worker);
  int64_t exchanged_bytes(int fragment) const;

  int64_t pull_bytes() const override { return model_.num_bytes; }
  int64_t bytes_in_flight() const override;

  std::vector<FlatPiece> saved_pieces() override { return pieces(/*saving=*/true); }
  Json state() const override;
  std::vector<FlatPiece> loaded_pieces(const Json& state, const std::string& where) override;
  void loaded(const Json& state) override;

 private:
  /// The fragment that is trained towards, and each worker's weight in its exchange.
  struct Exchange {
    std::vector<FragmentPiece> pieces;
    std::vector<double> weights;
    bool ends_round = true;
  };
  /// A worker's own tensors, with fragments only; empty for one that begins with the global model.
  struct Own {
    std::vector<at::Tensor> weights, buffers;
  };
  bool has_fragments() const { return num_fragments_ > 1; }
  std::vector<FragmentPiece> fragment_pieces(int fragment) const;
  std::vector<FlatPiece> pieces(bool saving);
  void add_own(size_t worker, bool saving, std::vector<FlatPiece>& out);

  ModelTensors model_;
  UpdateRule rule_;
  int num_fragments_;
  std::vector<PushOptimizer> optimizers_;  // Per worker.
  GlobalModel global_;
  Exchange exchange_;
  std::vector<Own> own_;                       // Per worker.
  std::vector<std::vector<int64_t>> windows_;  // Per fragment, each worker's samples since its last exchange.
  std::vector<at::Tensor> saved_windows_;      // windows_ in the form of checkpoints, per worker.
};

}  // namespace cohort
