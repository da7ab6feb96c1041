#include "cohort/models/graph/recompute_state.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <mutex>

#include "cohort/base/fail.h"

namespace cohort {

static std::vector<at::Device> devices_of(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Device> devices{at::kCPU};
  for (const at::Tensor& input : inputs)
    if (input.defined() && std::find(devices.begin(), devices.end(), input.device()) == devices.end()) devices.push_back(input.device());
  return devices;
}

RandomState::RandomState(const std::vector<at::Device>& devices) {
  for (const at::Device& device : devices) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
  }
}

void RandomState::restore() const {
  for (const auto& [generator, state] : states_) {
    at::Generator handle = generator;
    const std::lock_guard<std::mutex> lock(handle.mutex());
    handle.set_state(state);
  }
}

AutocastState::AutocastState(const std::vector<at::Device>& devices) : cached_(at::autocast::is_autocast_cache_enabled()) {
  for (const at::Device& device : devices) {
    if (!at::autocast::is_autocast_available(device.type())) continue;
    states_.push_back({device.type(), at::autocast::is_autocast_enabled(device.type()), at::autocast::get_autocast_dtype(device.type())});
  }
}

void AutocastState::restore() const {
  for (const State& state : states_) {
    at::autocast::set_autocast_enabled(state.type, state.enabled);
    at::autocast::set_autocast_dtype(state.type, state.dtype);
  }
  at::autocast::set_autocast_cache_enabled(cached_);
}

void AutocastState::forget_casts() const {
  if (std::any_of(states_.begin(), states_.end(), [](const State& state) { return state.enabled; })) at::autocast::clear_cache();
}

ForwardState::ForwardState(const std::vector<at::Tensor>& inputs) : devices(devices_of(inputs)), random(devices), autocast(devices) {
  if (const StepContext* context = current_step_context()) step = *context;
}

ForwardStateScope::ForwardStateScope(const ForwardState& state)
    : random_before_(state.devices), autocast_before_(state.devices), state_(state) {
  if (!state.step && current_step_context() != nullptr)
    fail(ErrorCode::kBadInput, "recompute: forward ran outside of a StepContextScope and backward runs inside of one (step ",
         current_step_context()->step, "), so dropout would draw other masks; set the scope around both");
  if (state.step) step_.emplace(*state.step);
  state.random.restore();
  state.autocast.restore();
  at::autocast::increment_nesting();
  state.autocast.forget_casts();
}

ForwardStateScope::~ForwardStateScope() {
  state_.autocast.forget_casts();
  at::autocast::decrement_nesting();
  autocast_before_.restore();
  random_before_.restore();
}

BufferScope::BufferScope(const torch::nn::Module* module) {
  if (module == nullptr) return;
  for (const at::Tensor& buffer : module->buffers())
    if (buffer.defined()) buffers_.emplace_back(buffer, buffer.detach().clone());
}

BufferScope::~BufferScope() {
  const at::NoGradGuard no_grad;
  for (const auto& [buffer, values] : buffers_) buffer.variable_data().copy_(values);  // variable_data: versions of its own.
}

}  // namespace cohort
