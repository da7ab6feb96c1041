#pragma once
// sync=queue: finished models queue up; a free worker takes one, trains its work item on it, and pushes the model.

#include <deque>
#include <memory>

#include "cohort/async/async_mode.h"
#include "cohort/async/push_optimizer.h"

namespace cohort {

struct ModelQueueOptions {
  UpdateRule rule;
  int64_t global_batch = 1;  ///< Samples of a step, for lateness.
  int capacity = 1;          ///< Maximum number of queued models; the oldest beyond that is dropped.
  bool newest = false;       ///< Serve the newest model, not the one that waits longest.
  bool replaces = false;     ///< Queue a finished model as it is, without merging.
};

/// One thread. `module` is where models are trained, evaluated and saved; between calls it holds any of them.
class ModelQueue : public AsyncMode {
 public:
  ModelQueue(const torch::nn::Module& module, const ModelQueueOptions& options);

  void pull(Assignment& assignment) override;
  void prepare_push(Assignment& assignment, WorkResult result, const StepNumbers& numbers) override;
  PushOutcome push(Assignment& assignment, const StepNumbers& numbers) override;
  std::vector<at::Tensor> served_tensors() const override;
  void copy_to_module() override;

  int64_t version() const override { return version_.version; }
  int64_t pull_bytes() const override;

  std::vector<FlatPiece> saved_pieces() override;
  Json state() const override;
  std::vector<FlatPiece> loaded_pieces(const Json& state, const std::string& where) override;
  void loaded(const Json& state) override;

 private:
  /// Immutable once queued.
  struct Model {
    ModelVersion version;
    std::vector<at::Tensor> weights, buffers;
    PushOptimizer optimizer;
    std::vector<at::Tensor> tensors() const;
    std::vector<at::Tensor> tensors_with_steps() const;
  };
  using ModelPointer = std::shared_ptr<Model>;
  ModelPointer copy_of_module() const;
  std::vector<ModelPointer> distinct_models() const;

  ModelQueueOptions options_;
  ModelTensors model_;
  PushOptimizer initial_optimizer_;
  ModelVersion version_;
  std::deque<ModelPointer> waiting_;
  ModelPointer served_, newest_;                              // The model served last, and the one finished last.
  std::vector<std::pair<ModelPointer, at::Tensor>> loading_;  // With their packed bytes.
};

/// Makes a step on the model that it was served, and pushes the model. `module` must outlive it.
class QueueWorker : public AsyncWorker {
 public:
  QueueWorker(const torch::nn::Module& module, const UpdateRule& rule);
  const std::vector<at::Tensor>& pull_buffers() const override { return pull_buffers_; }
  PushData make_push(const WorkItem& item, WorkResult result, const StepNumbers& numbers) override;

 private:
  ModelTensors model_;
  PushOptimizer optimizer_;
  at::Tensor steps_;
  std::vector<at::Tensor> pull_buffers_;
};

}  // namespace cohort
