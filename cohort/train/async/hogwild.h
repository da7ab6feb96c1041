#pragma once
// sync=hogwild: workers of one host write their updates into one copy of the weights, without a lock. hogwild.cpp has the algorithm.

#include <optional>
#include <string>

#include "cohort/train/async/async_mode.h"
#include "cohort/train/async/push_optimizer.h"
#include "cohort/train/served/worker_slot.h"

namespace cohort {

/// Moves the trained parameters of `module`, as they are, into memory that other processes of this host and user find by the address() of
/// what is returned. Before anything else keeps an alias of them. Error(kEnvironment) where the system gives no such memory.
WorkerSlot share_weights(const torch::nn::Module& module);

/// What the server has to do: it counts, and keeps the buffers. One thread.
class HogwildServer : public AsyncMode {
 public:
  /// The parameters of `module` are in shared memory.
  HogwildServer(const torch::nn::Module& module, int64_t global_batch) : model_(module), global_batch_(global_batch) {}

  void pull(Work& work, const StepNumbers& numbers) override;
  /// No worker of this mode is made up.
  void worked(Work& work, TicketResult result, const StepNumbers& numbers) override;
  PushOutcome push(Work& work, const StepNumbers& numbers) override;
  std::vector<at::Tensor> served() const override;
  void handed_out(Work& /*work*/) override {}
  void show() override {}

  int64_t version() const override { return version_; }
  int64_t pull_bytes() const override { return model_.num_bytes - model_.gradient_bytes; }
  int64_t push_bytes() const override { return pull_bytes(); }
  int64_t bytes_in_flight() const override { return pull_bytes(); }

  std::vector<FlatPiece> saved_pieces() override { return {}; }
  Json state() const override;
  std::vector<FlatPiece> loaded_pieces(const Json& state, const std::string& where) override;
  void loaded(const Json& state) override;
  std::vector<at::Tensor> empty_handed_over() const override { return empty_copies(served()); }
  size_t num_optional() const override { return 0; }

 private:
  ServedModel model_;
  int64_t global_batch_;
  int64_t version_ = 0, samples_ = 0;  // Updates that were told of.
};

/// One thread.
class HogwildWorker : public WorkerSide {
 public:
  /// `module` must outlive it, and nothing else may keep an alias of its parameters; `rule` is plain SGD.
  HogwildWorker(const torch::nn::Module& module, const UpdateRule& rule);

  /// Its parameters are the server's from now on. Error(kEnvironment) where they are not to be found from here.
  void share(const std::string& address) override;
  const std::vector<at::Tensor>& pulled() const override { return buffers_; }
  std::vector<at::Tensor> empty_handed_over() const override { return empty_copies(buffers_); }
  /// Updates the weights.
  HandedOver hand_over(const Ticket& ticket, TicketResult result, const StepNumbers& numbers) override;

 private:
  const torch::nn::Module& module_;
  UpdateRule rule_;
  std::vector<at::Tensor> buffers_;
  WorkerSlot memory_;
  std::optional<ServedModel> model_;  // Once its parameters are the server's.
  std::optional<PushOptimizer> optimizer_;
};

}  // namespace cohort
