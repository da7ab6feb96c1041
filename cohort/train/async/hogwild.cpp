// Hogwild: stochastic gradient descent on one copy of the weights by several processes that do not lock it.
//
// Definitions: w the weights, in memory that all workers of the host have mapped; b of the B samples of a step are in a ticket, a = b / B.
// Steps of a ticket:
//   1. the worker computes the mean gradient m of its samples, on w while others write it: what forward read of a weight, and what backward
//      reads of it later, may differ;
//   2. it writes w = w - a lr m (with weight decay and clipping as of a push, push_optimizer.h), element by element, in no order with what
//      others write. Where two write one element at the same time one of the two additions may be lost;
//   3. it tells the server, which counts samples, steps and staleness, and merges the running statistics by a.
// Nothing is locked, so who is killed in the middle of 2 leaves some elements updated, and its ticket is done again by another. Elements
// are never half written: a float is written in one piece. An evaluation or a checkpoint takes the weights as they are while it copies
// them.
//
// Cost of a ticket: two small messages; the weights are read by forward and backward as always, and read and written once by the update.
// No copies, and no thread that all wait for. Memory: one copy of the weights a host, and the gradients of each worker.
//
// Staleness is the number of updates told of between a worker's order and its own: what was written before it was told of is not in it.
//
// Source: Niu, Recht, Re, Wright 2011 ("Hogwild!", algorithm 1). Differences: its gradients are sparse, so that two rarely write one
// element, which is what its proof is of; those of networks are dense. Updates are of tickets, not of single samples.
#include "cohort/train/async/hogwild.h"

#include <torch/csrc/autograd/grad_mode.h>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

std::vector<at::Tensor> trained_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& parameter : trained_parameters(distinct_parameters(module))) tensors.push_back(parameter.tensor);
  return tensors;
}

void place(const std::vector<at::Tensor>& parameters, const WorkerSlot& memory) {
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].set_data(memory.down()[i]);
}

std::vector<at::Tensor> buffers_of(const ServedModel& model) {
  std::vector<at::Tensor> buffers;
  for (const NamedTensor& buffer : model.buffers) buffers.push_back(buffer.tensor.detach());
  return buffers;
}

}  // namespace

WorkerSlot share_weights(const torch::nn::Module& module) {
  const std::vector<at::Tensor> parameters = trained_of(module);
  WorkerSlot memory = WorkerSlot::make(parameters, {});
  if (!memory)
    fail(ErrorCode::kEnvironment, "sync=hogwild: the system gives no shared memory for the weights; use sync=async, or free some");
  copy_tensors(memory.down(), parameters);
  place(parameters, memory);
  return memory;
}

void HogwildServer::pull(Work& work, const StepNumbers& /*numbers*/) {
  work.base_version = version_;
  work.base_samples = samples_;
}

void HogwildServer::worked(Work& /*work*/, TicketResult /*result*/, const StepNumbers& /*numbers*/) {
  fail(ErrorCode::kFailed, "sync=hogwild has no workers that are made up");
}

PushOutcome HogwildServer::push(Work& work, const StepNumbers& /*numbers*/) {
  const PushOutcome outcome{.staleness = version_ - work.base_version,
                            .late_steps = static_cast<double>(samples_ - work.base_samples) / static_cast<double>(global_batch_)};
  mix_tensors(served(), work.tensors, work.ticket.weight());
  ++version_;
  samples_ += work.ticket.num_samples();
  return outcome;
}

std::vector<at::Tensor> HogwildServer::served() const { return buffers_of(model_); }

Json HogwildServer::state() const { return Json{{"version", version_}, {"samples", samples_}}; }

std::vector<FlatPiece> HogwildServer::loaded_pieces(const Json& state, const std::string& where) {
  if (state.is_null()) return {};
  for (const char* key : {"version", "samples"}) {
    const Json count = state.is_object() ? state.value(key, Json()) : Json();
    if (!count.is_number_integer() || count.get<int64_t>() < 0)
      fail(ErrorCode::kBadInput, where, ": the state of the workers is damaged: no ", key);
  }
  return {};
}

void HogwildServer::loaded(const Json& state) {
  if (state.is_null()) return;
  version_ = state["version"].get<int64_t>();
  samples_ = state["samples"].get<int64_t>();
}

HogwildWorker::HogwildWorker(const torch::nn::Module& module, const UpdateRule& rule)
    : module_(module), rule_(rule), buffers_(buffers_of(ServedModel(module))) {}

void HogwildWorker::share(const std::string& address) {
  if (memory_ && memory_.address() == address) return;  // It came again.
  const std::vector<at::Tensor> parameters = trained_of(module_);
  memory_ = WorkerSlot::find(address, parameters, {});
  if (!memory_)
    fail(ErrorCode::kEnvironment,
         "sync=hogwild: the weights of rank 0 are not to be found from here: its workers are processes of one host and one user, which see "
         "each other; use sync=async where they are not");
  place(parameters, memory_);
  model_.emplace(module_);
  optimizer_.emplace(rule_, model_->trained);
}

HandedOver HogwildWorker::hand_over(const Ticket& ticket, TicketResult result, const StepNumbers& numbers) {
  optimizer_->apply({.weight = ticket.weight(), .learning_rate = numbers.learning_rate, .clip_norm = numbers.clip_norm}, model_->weights,
                    result.gradients);
  return {.loss = result.loss, .tensors = std::move(result.buffers)};
}

}  // namespace cohort
