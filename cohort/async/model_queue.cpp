// 1. A free worker is served the model that waits longest (or the newest) and that leaves the queue; where none waits, the one that was
//    served last, again.
// 2. It makes one whole step of the optimizer on it with the mean gradient of its ticket, at the full rate: the optimizer's state travels
//    with the model.
// 3. The finished model is merged into the newest one there is, b / B of the way for b of the B samples of a step (weights, optimizer state
//    and running statistics alike), and the result queues up as the newest; or, in the plain scheme, it queues up as it is, and what others
//    learnt meanwhile is lost unless somebody trains on theirs. At most `capacity` models wait; the oldest beyond that is dropped.
//
// One worker, whose ticket is the whole step, replaces the model by its own each time: the step. Messages: a model with its optimizer state
// there and back for each ticket, so (1 + slots) x the weights each way. Merging by samples into the newest, served newest first, is
// FedAsync (Xie, Koyejo, Gupta 2019, arXiv 1903.03934) with the constant mixing weight b / B.
#include "cohort/async/model_queue.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <map>

#include "cohort/async/packed_tensors.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json_fields.h"

namespace cohort {
namespace {

at::Tensor tensor_of(const std::vector<double>& numbers) {
  at::Tensor out = at::empty({static_cast<int64_t>(numbers.size())}, at::kDouble);
  std::copy(numbers.begin(), numbers.end(), out.data_ptr<double>());
  return out;
}

std::vector<double> numbers_of(const at::Tensor& tensor) {
  const double* const begin = tensor.data_ptr<double>();
  return {begin, begin + tensor.numel()};
}

/// A whole step with the mean gradient of the ticket's samples, at the full rate.
void make_step(const Ticket& ticket, TicketResult& result, const StepNumbers& numbers, const ServedModel& model, PushOptimizer& optimizer) {
  at::NoGradGuard no_grad;
  const double weight = ticket.weight();
  for (at::Tensor& gradient : result.gradients)
    if (gradient.defined() && weight != 1) gradient.mul_(1 / weight);
  optimizer.apply({.weight = 1, .learning_rate = numbers.learning_rate, .clip_norm = numbers.clip_norm}, model.weights, result.gradients);
}

}  // namespace

/// In the order in which work hands them over.
std::vector<at::Tensor> ModelQueue::Model::tensors() const {
  std::vector<at::Tensor> all = weights;
  for (const auto& more : {optimizer.arrays(), buffers}) all.insert(all.end(), more.begin(), more.end());
  return all;
}

ModelQueue::ModelQueue(const torch::nn::Module& module, const ModelQueueOptions& options)
    : options_(options), model_(module), fresh_(options.rule, model_.trained) {
  newest_ = served_ = copy_of_module();
  waiting_ = {newest_};
}

ModelQueue::ModelPointer ModelQueue::copy_of_module() const {
  return std::make_shared<Model>(
      Model{.weights = model_.copy_of_weights(), .buffers = model_.copy_of_buffers(), .optimizer = fresh_.copy()});
}

ModelQueue::ModelPointer ModelQueue::copy_of(const Model& model) const {
  return std::make_shared<Model>(Model{.version = model.version,
                                       .samples = model.samples,
                                       .weights = copies(model.weights),
                                       .buffers = copies(model.buffers),
                                       .optimizer = model.optimizer.copy()});
}

int64_t ModelQueue::pull_bytes() const {
  return model_.num_bytes + static_cast<int64_t>(options_.rule.slots().size()) * model_.gradient_bytes;
}

void ModelQueue::pull(Work& work) {
  if (!waiting_.empty()) {
    served_ = options_.newest ? waiting_.back() : waiting_.front();
    if (options_.newest) waiting_.pop_back();
    else waiting_.pop_front();
  }
  work.base_version = served_->version;
  work.base_samples = served_->samples;
  model_.set_weights(served_->weights);
  model_.set_buffers(served_->buffers);
}

void ModelQueue::worked(Work& work, TicketResult result, const StepNumbers& numbers) {
  PushOptimizer optimizer = served_->optimizer.copy();
  make_step(work.ticket, result, numbers, model_, optimizer);
  work.loss = result.loss;
  work.tensors = Model{.weights = model_.copy_of_weights(), .buffers = std::move(result.buffers), .optimizer = optimizer}.tensors();
  work.tensors.push_back(tensor_of(optimizer.steps()));
}

PushOutcome ModelQueue::push(Work& work, const StepNumbers& /*numbers*/) {
  const PushOutcome outcome{.staleness = version_ - work.base_version,
                            .late_steps = static_cast<double>(samples_ - work.base_samples) / static_cast<double>(options_.global_batch)};
  const double part = options_.replaces ? 1 : work.ticket.weight();
  const ModelPointer merged = copy_of(*newest_);
  const std::vector<double> steps = numbers_of(work.tensors.back());
  work.tensors.pop_back();
  mix_tensors(merged->tensors(), work.tensors, part);
  std::vector<double> mixed = merged->optimizer.steps();
  for (size_t i = 0; i < mixed.size(); ++i) mixed[i] = part == 1 ? steps[i] : mixed[i] + part * (steps[i] - mixed[i]);
  merged->optimizer.set_steps(std::move(mixed));
  merged->version = ++version_;
  merged->samples = samples_ += work.ticket.num_samples();
  waiting_.push_back(merged);
  if (std::ssize(waiting_) > options_.capacity) waiting_.pop_front();
  newest_ = merged;
  return outcome;
}

void ModelQueue::show() {
  model_.set_weights(newest_->weights);
  model_.set_buffers(newest_->buffers);
}

/// Each model once, by its version.
std::vector<ModelQueue::ModelPointer> ModelQueue::held() const {
  std::map<int64_t, ModelPointer> all;
  for (const ModelPointer& model : waiting_) all[model->version] = model;
  for (const ModelPointer& model : {served_, newest_}) all[model->version] = model;
  std::vector<ModelPointer> models;
  for (const auto& [version, model] : all) models.push_back(model);
  return models;
}

std::vector<FlatPiece> ModelQueue::saved_pieces() {
  std::vector<FlatPiece> pieces = newest_->optimizer.pieces(model_.trained);
  for (const ModelPointer& model : held()) {
    std::vector<at::Tensor> tensors = model->tensors();
    tensors.push_back(tensor_of(model->optimizer.steps()));
    const at::Tensor bytes = packed(tensors);
    pieces.push_back({"async/model/" + std::to_string(model->version), bytes, {bytes.numel()}, 0});
  }
  return pieces;
}

Json ModelQueue::state() const {
  Json models = Json::array(), waiting = Json::array();
  for (const ModelPointer& model : held()) models.push_back({model->version, model->samples});
  for (const ModelPointer& model : waiting_) waiting.push_back(model->version);
  return Json{{"version", version_}, {"samples", samples_},        {"models", models},
              {"waiting", waiting},  {"served", served_->version}, {"newest", newest_->version}};
}

std::vector<FlatPiece> ModelQueue::loaded_pieces(const Json& state, const std::string& where) {
  being_loaded_.clear();
  newest_ = copy_of_module();
  if (state.is_null()) return newest_->optimizer.pieces(model_.trained);
  const auto refuse = [&] { fail(ErrorCode::kBadInput, where, ": the state of the queue of models is damaged"); };
  const Json models = state.value("models", Json()), waiting = state.value("waiting", Json());
  if (!is_natural(state.value("version", Json())) || !is_natural(state.value("samples", Json())) || !models.is_array() || models.empty() ||
      !waiting.is_array() || models.size() > static_cast<size_t>(options_.capacity) + 2 ||
      waiting.size() > static_cast<size_t>(options_.capacity))
    refuse();
  std::vector<FlatPiece> pieces = newest_->optimizer.pieces(model_.trained);
  for (const Json& row : models) {
    if (!row.is_array() || row.size() != 2 || !is_natural(row[0]) || !is_natural(row[1])) refuse();
    ModelPointer model = copy_of_module();
    model->version = row[0].get<int64_t>();
    model->samples = row[1].get<int64_t>();
    const int64_t bytes = packed_bytes(model->tensors()) + static_cast<int64_t>(model_.trained.size() * sizeof(double));
    being_loaded_.emplace_back(model, at::empty({bytes}, at::kByte));
    pieces.push_back({"async/model/" + std::to_string(model->version), being_loaded_.back().second, {bytes}, 0});
  }
  const auto is_held = [&](const Json& version) {
    return is_natural(version) && std::any_of(being_loaded_.begin(), being_loaded_.end(),
                                              [&](const auto& each) { return each.first->version == version.get<int64_t>(); });
  };
  if (!is_held(state.value("served", Json())) || !is_held(state.value("newest", Json())) ||
      !std::all_of(waiting.begin(), waiting.end(), is_held))
    refuse();
  return pieces;
}

void ModelQueue::loaded(const Json& state) {
  if (state.is_null()) {
    newest_->optimizer.load_counts();
    newest_->weights = model_.copy_of_weights();
    newest_->buffers = model_.copy_of_buffers();
    served_ = newest_;
    waiting_ = {newest_};
    return;
  }
  std::map<int64_t, ModelPointer> models;
  for (const auto& [model, bytes] : being_loaded_) {
    std::vector<at::Tensor> tensors = model->tensors();
    tensors.push_back(tensor_of(model->optimizer.steps()));
    unpack(bytes, tensors);
    model->optimizer.set_steps(numbers_of(tensors.back()));
    models[model->version] = model;
  }
  being_loaded_.clear();
  version_ = state["version"].get<int64_t>();
  samples_ = state["samples"].get<int64_t>();
  served_ = models.at(state["served"].get<int64_t>());
  newest_ = models.at(state["newest"].get<int64_t>());
  waiting_.clear();
  for (const Json& version : state["waiting"]) waiting_.push_back(models.at(version.get<int64_t>()));
}

std::vector<at::Tensor> ModelQueue::served() const {
  std::vector<at::Tensor> tensors = served_->tensors();
  tensors.push_back(tensor_of(served_->optimizer.steps()));
  return tensors;
}

QueueWorker::QueueWorker(const torch::nn::Module& module, const UpdateRule& rule)
    : model_(module), optimizer_(rule, model_.trained), steps_(tensor_of(optimizer_.steps())) {
  const std::vector<at::Tensor> all = model_.tensors(), arrays = optimizer_.arrays();
  const auto buffers = all.begin() + std::ssize(model_.weights);
  pulled_.assign(all.begin(), buffers);  // As Model::tensors() has them.
  pulled_.insert(pulled_.end(), arrays.begin(), arrays.end());
  pulled_.insert(pulled_.end(), buffers, all.end());
  pulled_.push_back(steps_);
}

HandedOver QueueWorker::hand_over(const Ticket& ticket, TicketResult result, const StepNumbers& numbers) {
  optimizer_.set_steps(numbers_of(steps_));
  make_step(ticket, result, numbers, model_, optimizer_);
  std::copy(optimizer_.steps().begin(), optimizer_.steps().end(), steps_.data_ptr<double>());
  HandedOver out{.loss = result.loss, .tensors = pulled_};
  std::copy(result.buffers.begin(), result.buffers.end(), out.tensors.end() - 1 - std::ssize(result.buffers));
  return out;
}

}  // namespace cohort
