#pragma once
// What recompute() puts back so that a second run of a function is like the first: random numbers, step context, autocast, buffers.

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>
#include <vector>

#include "cohort/models/graph/step_context.h"

namespace torch::nn {
class Module;
}

namespace cohort {

/// LibTorch's random generators as they were when it was made.
class RandomState {
 public:
  explicit RandomState(const std::vector<at::Device>& devices);
  void restore() const;

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

/// This thread's autocast state as it was when it was made.
class AutocastState {
 public:
  explicit AutocastState(const std::vector<at::Device>& devices);
  void restore() const;
  /// Casts of weights belong to the graph that they were made in: a run must neither find those of others nor, when its graph is cut, leave
  /// its own. Without effect where autocast was off.
  void forget_casts() const;

 private:
  struct State {
    at::DeviceType type;
    bool enabled;
    at::ScalarType dtype;
  };
  std::vector<State> states_;
  bool cached_;
};

/// All of them, and the calling thread's step context.
struct ForwardState {
  explicit ForwardState(const std::vector<at::Tensor>& inputs);

  std::vector<at::Device> devices;  ///< The CPU and the inputs' devices: whose generators and autocast states count.
  RandomState random;
  AutocastState autocast;
  std::optional<StepContext> step;
};

/// Puts a state in force, and at its end what was before. Error(kBadInput) inside of a step for a state from outside of one.
class ForwardStateScope {
 public:
  explicit ForwardStateScope(const ForwardState& state);
  ~ForwardStateScope();
  ForwardStateScope(const ForwardStateScope&) = delete;

 private:
  RandomState random_before_;
  AutocastState autocast_before_;
  const ForwardState& state_;
  std::optional<StepContextScope> step_;
};

/// At its end gives a module's buffers their values back, as if nobody had written them: their versions stay. Null: does nothing.
class BufferScope {
 public:
  explicit BufferScope(const torch::nn::Module* module);
  ~BufferScope();
  BufferScope(const BufferScope&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;
};

}  // namespace cohort
