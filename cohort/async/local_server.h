#pragma once
// sync=local:H and diloco:H: workers that train by themselves between exchanges, with a quorum of them at a server, and without ranks.

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

// sync=local:H and diloco:H with a quorum: workers train by themselves for H steps and hand over by how much their weights moved; whatever
// has come when an exchange is made is merged by samples, and who is late counts in the next one. local_server.cpp has the algorithm.

// When an exchange takes place: with a quorum of the workers, and the others as far as they come within a grace time. Knows no clock.

/// A value.
class RoundGate {
 public:
  /// `quorum`: from 1.
  RoundGate(int quorum, double grace_seconds) : quorum_(quorum), grace_seconds_(grace_seconds) {}

  /// One more has handed over.
  void add(double now) {
    if (++num_there_ == quorum_) complete_since_ = now;
  }
  /// The exchange was made.
  void clear() { *this = RoundGate(quorum_, grace_seconds_); }

  /// Whether it takes place now; `others_come`: somebody else is on the way. With nobody on the way those that are there suffice, so that
  /// lost workers stop nobody.
  bool opens(double now, bool others_come) const {
    if (num_there_ == 0) return false;
    return !others_come || (num_there_ >= quorum_ && seconds_left(now) <= 0);
  }
  /// Until the grace time is over; infinite without the quorum.
  double seconds_left(double now) const {
    if (num_there_ < quorum_) return std::numeric_limits<double>::infinity();
    return complete_since_ + grace_seconds_ - now;
  }

  double complete_since() const { return complete_since_; }
  void restore(int num_there, double complete_since) { num_there_ = num_there, complete_since_ = complete_since; }

 private:
  int quorum_, num_there_ = 0;
  double grace_seconds_, complete_since_ = 0;
};

struct LocalServerOptions {
  std::optional<OuterOptimizer> outer;  ///< None: the weights move by the mean change.
  int64_t global_batch = 1;             ///< Samples of a step, in which lateness is counted.
};

/// One thread. The global model; `module` gets it with show() alone.
class LocalServer : public AsyncMode {
 public:
  LocalServer(const torch::nn::Module& module, const LocalServerOptions& options);

  /// The exchange: of the works of several workers, each with its samples, in this order. Outcomes in the same.
  std::vector<PushOutcome> merge(const std::vector<Work*>& works);

  void pull(Work& work) override;
  /// A change of weights in place of gradients.
  void worked(Work& work, TicketResult result, const StepNumbers& numbers) override;
  /// An exchange of one alone.
  PushOutcome push(Work& work, const StepNumbers& numbers) override { return (void)numbers, merge({&work}).front(); }
  std::vector<at::Tensor> served() const override;
  void show() override;

  int64_t version() const override { return version_; }
  int64_t pull_bytes() const override { return model_.num_bytes; }
  int64_t push_bytes() const override { return model_.num_bytes; }
  int64_t bytes_in_flight() const override { return model_.num_bytes; }

  std::vector<FlatPiece> saved_pieces() override { return pieces(/*saving=*/true); }
  Json state() const override;
  std::vector<FlatPiece> loaded_pieces(const Json& state, const std::string& where) override;
  void loaded(const Json& state) override;
  std::vector<at::Tensor> empty_handed_over() const override { return empty_copies(served()); }
  size_t num_optional() const override { return 0; }
  LocalServer* quorum() override { return this; }

 private:
  std::vector<FlatPiece> pieces(bool saving);
  void add(const Work& work, double share, bool is_first);

  LocalServerOptions options_;
  ServedModel model_;
  std::vector<at::Tensor> anchors_, buffers_;   // After the last exchange: the global model.
  std::vector<at::Tensor> changes_, averages_;  // Of the exchange that is being made.
  std::optional<ShardOptimizer> outer_;
  int64_t version_ = 0, samples_ = 0;  // Works merged, and their samples.
};

/// A worker, with an optimizer of its own that nobody else sees. `module` must outlive it.
class LocalWorker : public WorkerSide {
 public:
  LocalWorker(const torch::nn::Module& module, const UpdateRule& rule);

  /// On the weights that were pulled: begin(), step() for each step's ticket, end().
  void begin();
  void step(const Ticket& ticket, const TicketResult& result, const StepNumbers& numbers);
  /// Its loss is the mean over the samples.
  TicketResult end();

  const std::vector<at::Tensor>& pulled() const override { return pulled_; }
  std::vector<at::Tensor> empty_handed_over() const override { return empty_copies(pulled_); }
  /// All of it, of one step.
  HandedOver hand_over(const Ticket& ticket, TicketResult result, const StepNumbers& numbers) override;
  HandedOver work(const OrderedTicket& order) override;

  std::vector<FlatPiece> pieces() override { return optimizer_.pieces(model_.trained); }
  void load_counts() override { optimizer_.load_counts(); }

 private:
  ServedModel model_;
  PushOptimizer optimizer_;
  std::vector<at::Tensor> pulled_, base_;
  double loss_ = 0;  // Sum over samples.
  int64_t samples_ = 0;
};

/// Of works that were merged: one push of all their samples.
AppliedPush as_one_push(const std::vector<Work*>& works);

/// As a worker hands them over.
std::vector<at::Tensor> handed_tensors(TicketResult result);

// sync=local and diloco without ranks: what N workers that train by themselves between exchanges hold, one after the other in one process.
// Between two rounds all have the same weights, so only their optimizers are kept apart; with fragments in turn their weights too.

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
  double step(int worker, const Ticket& ticket, const TicketResult& result, const StepNumbers& numbers);
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
