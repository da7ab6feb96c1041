#pragma once
// sync=queue: finished models queue up; a free worker takes one, trains its ticket on it, and hands the model over.

#include <deque>
#include <memory>

#include "cohort/async/async_mode.h"
#include "cohort/async/push_optimizer.h"

namespace cohort {

struct ModelQueueOptions {
  UpdateRule rule;
  int64_t global_batch = 1;  ///< Samples of a step, in which lateness is counted.
  int capacity = 1;          ///< Models that may wait; the oldest beyond that is dropped.
  bool newest = false;       ///< The newest is served, and not the one that waits longest.
  bool replaces = false;     ///< A finished model is taken as it is, and not merged.
};

/// One thread. `module` is where models are trained, shown and saved; between calls it holds any of them.
class ModelQueue : public AsyncMode {
 public:
  ModelQueue(const torch::nn::Module& module, const ModelQueueOptions& options);

  void pull(Work& work) override;
  void worked(Work& work, TicketResult result, const StepNumbers& numbers) override;
  PushOutcome push(Work& work, const StepNumbers& numbers) override;
  std::vector<at::Tensor> served() const override;
  void show() override;

  int64_t version() const override { return version_; }
  int64_t pull_bytes() const override;
  int64_t push_bytes() const override { return pull_bytes(); }
  int64_t bytes_in_flight() const override { return pull_bytes(); }

  std::vector<FlatPiece> saved_pieces() override;
  Json state() const override;
  std::vector<FlatPiece> loaded_pieces(const Json& state, const std::string& where) override;
  void loaded(const Json& state) override;
  std::vector<at::Tensor> empty_handed_over() const override { return empty_copies(served()); }
  size_t num_optional() const override { return 0; }

 private:
  /// Never changed once it is made.
  struct Model {
    int64_t version = 0, samples = 0;  // Pushes and their samples when it was made.
    std::vector<at::Tensor> weights, buffers;
    PushOptimizer optimizer;
    std::vector<at::Tensor> tensors() const;
  };
  using ModelPointer = std::shared_ptr<Model>;
  ModelPointer copy_of_module() const;
  ModelPointer copy_of(const Model& model) const;
  std::vector<ModelPointer> held() const;

  ModelQueueOptions options_;
  ServedModel model_;
  PushOptimizer fresh_;  // State of an optimizer that has done nothing.
  int64_t version_ = 0, samples_ = 0;
  std::deque<ModelPointer> waiting_;
  ModelPointer served_, newest_;                                   // The last that was served, and that was finished.
  std::vector<std::pair<ModelPointer, at::Tensor>> being_loaded_;  // With their bytes.
};

/// Of a worker that makes a step on the model that it was served, and hands that over. `module` must outlive it.
class QueueWorker : public WorkerSide {
 public:
  QueueWorker(const torch::nn::Module& module, const UpdateRule& rule);
  const std::vector<at::Tensor>& pulled() const override { return pulled_; }
  std::vector<at::Tensor> empty_handed_over() const override { return empty_copies(pulled_); }
  HandedOver hand_over(const Ticket& ticket, TicketResult result, const StepNumbers& numbers) override;

 private:
  ServedModel model_;
  PushOptimizer optimizer_;
  at::Tensor steps_;
  std::vector<at::Tensor> pulled_;
};

}  // namespace cohort
