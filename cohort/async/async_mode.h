#pragma once
// Asynchronous data-parallel training as states and transitions, without clocks, processes or messages: gradient_server.h applies gradients
// to one model, model_queue.h passes whole models around, local_server.h merges what workers trained by themselves. async/simulated/ drives
// a mode under a simulated clock, async/served/ with real processes.
//
// The model and the worker in one process:
//   mode.pull(assignment);                                        // loads the weights that the worker gets into the module
//   result = work_item_runner.compute(assignment.item, rate);          // forward and backward
//   mode.prepare_push(assignment, std::move(result), numbers);    // what the worker will send; the module is free again
//   mode.push(assignment, numbers);                               // when it arrives
//
// With the worker in another process, AsyncWorker is its half:
//   mode.pull(assignment); send(mode.served_tensors());
//   receive(worker.pull_buffers()); send(worker.make_push(item, work_item_runner.compute(item, rate), numbers).tensors);
//   mode.push(assignment, numbers);                               // with the received tensors

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/data/work_queue.h"
#include "cohort/parallel/common/flat_piece.h"
#include "cohort/parallel/common/parameters.h"

namespace cohort {

/// Result of forward and backward on a work item.
struct WorkResult {
  double loss = 0;                    ///< The item's contribution to the loss of its step: sum over its samples / samples of the step.
  std::vector<at::Tensor> gradients;  ///< Gradient of that loss per trained parameter; undefined where there is none.
  std::vector<at::Tensor> buffers;    ///< Buffers as forward left them.
};

/// A work item in the hands of one worker, from its pull to its push.
struct Assignment {
  WorkItem item;
  int worker = 0;            ///< Needed only by modes that also run the worker's half.
  int64_t base_version = 0;  ///< Pushes, and samples of them, applied before its pull.
  int64_t base_samples = 0;
  double loss = 0;
  std::vector<at::Tensor> tensors;  ///< The push, in the mode's order; some may be undefined.
};

/// Learning rate and clipping of the step in which a push is applied or a queued model is trained.
struct StepNumbers {
  double learning_rate = 0, clip_norm = 0;
};

struct PushOutcome {
  int64_t staleness = 0;  ///< Pushes applied between its pull and this push.
  double late_steps = 0;  ///< The same in steps.
  double gradient_norm = 0;
};

/// Pushes applied to a model, and their samples.
struct ModelVersion {
  int64_t version = 0, samples = 0;

  void mark_pull(Assignment& assignment) const;
  /// How stale a push of `assignment` is if applied now; a step has `global_batch` samples.
  PushOutcome outcome(const Assignment& assignment, int64_t global_batch) const;
  void add_push(const Assignment& assignment);
  /// From the "version" and "samples" of a saved state. Error(kBadInput) beginning with `where`.
  static ModelVersion from(const Json& state, const std::string& where);
};

/// The model of an asynchronous training as seen by evaluation and checkpoints.
class AsyncModel {
 public:
  virtual ~AsyncModel() = default;

  /// Copies the newest complete version into the module, for evaluation and checkpoints.
  virtual void copy_to_module() {}

  virtual int64_t pull_bytes() const = 0;                           ///< Size of a message to a worker.
  virtual int64_t push_bytes() const { return pull_bytes(); }       ///< Size of a message from a worker.
  virtual int64_t bytes_in_flight() const { return push_bytes(); }  ///< Memory for the outstanding work of one worker.

  /// Tensors to save beside the module's own parameters and buffers; call copy_to_module() first.
  virtual std::vector<FlatPiece> saved_pieces() = 0;
  virtual Json state() const = 0;
  /// Memory to load the tensors of `state` into, the optimizer's included. A null state means a checkpoint of another kind of training.
  /// Error(kBadInput) beginning with `where`.
  virtual std::vector<FlatPiece> loaded_pieces(const Json& state, const std::string& where) = 0;
  /// Call after these pieces and the module's own tensors were loaded.
  virtual void loaded(const Json& state) = 0;
};

class LocalServer;

/// A model that workers pull from and push to, one work item at a time.
class AsyncMode : public AsyncModel {
 public:
  virtual void pull(Assignment& assignment) = 0;
  virtual void prepare_push(Assignment& assignment, WorkResult result, const StepNumbers& numbers) = 0;
  virtual PushOutcome push(Assignment& assignment, const StepNumbers& numbers) = 0;
  /// After pull(): the tensors to send to a remote worker, as aliases.
  virtual std::vector<at::Tensor> served_tensors() const = 0;
  virtual int64_t version() const = 0;  ///< Number of pushes applied.
  /// Drops what prepare_push() keeps of that worker between items.
  virtual void forget(int /*worker*/) {}
  /// The mode itself if its exchanges merge the pushes of a quorum of workers, else null.
  virtual LocalServer* local_server() { return nullptr; }

  /// Uninitialized tensors with the shapes of a push; the first num_optional() of them may be missing in a push.
  virtual std::vector<at::Tensor> empty_push() const;
  virtual size_t num_optional() const { return 0; }
};

struct PushData {
  double loss = 0;
  std::vector<at::Tensor> tensors;  ///< Shaped as empty_push().
};

/// A work item assigned to a remote worker, and how to compute it.
struct AssignedItem {
  const WorkQueue& queue;
  int64_t step = 0;
  int share = 0;
  StepNumbers numbers;                          ///< Learning rate and clipping of that step.
  std::function<double(int64_t step)> rate_at;  ///< Learning rate of any step.
  std::function<WorkResult(const WorkItem& item, double rate)> compute;
};

/// The worker's half of a mode whose model lives in another process. One thread.
class AsyncWorker {
 public:
  virtual ~AsyncWorker() = default;
  /// Memory to receive served_tensors() in; aliases of the module's own where possible.
  virtual const std::vector<at::Tensor>& pull_buffers() const = 0;
  virtual std::vector<at::Tensor> empty_push() const;
  virtual PushData make_push(const WorkItem& item, WorkResult result, const StepNumbers& numbers) = 0;
  /// Computes an assigned item: one forward and backward, or H local steps with the worker's own optimizer.
  virtual PushData work(const AssignedItem& assigned);
  /// State of the worker's own optimizer, if any; call load_counts() after loading into it.
  virtual std::vector<FlatPiece> pieces() { return {}; }
  virtual void load_counts() {}
  /// Drops state kept between items: after a reconnect nobody knows whether the last push arrived.
  virtual void reset() {}
};

struct AppliedPush {
  WorkItem item;
  double loss = 0;
  PushOutcome outcome;
};

/// Flat aliases of a module's trained parameters and buffers.
struct ModelTensors {
  explicit ModelTensors(const torch::nn::Module& module);
  std::vector<NamedTensor> trained, buffers;
  std::vector<at::Tensor> weights;  ///< Flat aliases of the trained parameters.
  int64_t num_bytes = 0;            ///< Trained parameters and buffers.
  int64_t gradient_bytes = 0;       ///< Trained parameters only.

  /// Aliases of weights, then buffers.
  std::vector<at::Tensor> tensors() const;
  std::vector<at::Tensor> copy_of_weights() const;
  std::vector<at::Tensor> copy_of_buffers() const;
  void set_weights(const std::vector<at::Tensor>& values) const;
  void set_buffers(const std::vector<at::Tensor>& values) const;
};

/// to += weight * (from - to) for floating point (an exact copy for weight 1); integer counters become the maximum of both.
void mix_tensors(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from, double weight);
std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors);
std::vector<at::Tensor> empty_copies(const std::vector<at::Tensor>& tensors);
/// `items`, then `more`.
template <typename T>
std::vector<T> joined(std::vector<T> items, const std::vector<T>& more) {
  items.insert(items.end(), more.begin(), more.end());
  return items;
}

}  // namespace cohort
