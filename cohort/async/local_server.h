#pragma once
// sync=local:H and diloco:H with a quorum: workers train by themselves for H steps and hand over by how much their weights moved; whatever
// has come when an exchange is made is merged by samples, and who is late counts in the next one. local_server.cpp has the algorithm.

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "cohort/async/async_mode.h"
#include "cohort/async/push_optimizer.h"
#include "cohort/parallel/local/local_steps.h"
#include "cohort/parallel/optimizer/shard_optimizer.h"

namespace cohort {

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
  void step(const Ticket& ticket, TicketResult result, const StepNumbers& numbers);
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

}  // namespace cohort
