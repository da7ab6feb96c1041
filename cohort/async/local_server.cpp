// Decoupled local steps.
//
// Definitions: a the global weights (the anchor), w_r those of worker r, b_r the anchor that it began with, n_r the samples of its H steps,
// Q the quorum.
// Steps:
//   1. A free worker gets a, and the next H steps of a share. It updates w_r by the mean gradient of its own samples, with an optimizer of
//      its own, and pushes w_r - b_r.
//   2. When Q pushes have arrived the server waits for the others, at most the grace time (QuorumGate), and merges those at hand:
//        d = sum over r, in order of shares, of n_r / n (w_r - b_r), n the sum of the n_r
//        local:  a = a + d            diloco:  v = m v - d;  a = a - rate (-d + m v)
//      Buffers (batch norm's running statistics) become their mean with the same weights. Workers that took part go on with a.
//   3. A late push is merged by its samples in the next exchange, as a change of the anchor that its worker began with.
// With Q = N and no losses this is parallel/local/local_steps.cpp bit by bit, in its order of arithmetic.
//
// Cost of an exchange: the bytes of the model down and up per worker in it. Memory of the server: the anchor, the sum, diloco's v; of a
// worker: its anchor and optimizer.
//
// The optimizer stays with its worker: a lost worker's is gone, and a new worker begins with a fresh one. A checkpoint holds the anchor, v
// and the optimizer of worker 0, which runs beside the server; after --resume worker 0 continues with it, the others begin anew.
//
// LocalModels is the same arithmetic without a server: all workers of a simulated training in one process, each fragment of the model
// exchanged after a step of its own of the round. A worker that does not finish has weight 0. Memory: one model with anchor and sum, and N
// optimizers; with fragments also N models.
//
// Source: Douillard et al. 2026 (Decoupled DiLoCo, arXiv 2604.21428), from its abstract and summaries: quorum, grace time, merging by what
// learners have seen, a syncer that waits for no single one. Differences: weights are the samples (there: tokens times tokens a step, which
// also favours large batches; here all batches of a share are alike); the grace time is fixed, not adaptive; the model is exchanged whole;
// a late change counts from the anchor that its worker began with (as in asynchronous DiLoCo, Liu et al. 2024, arXiv 2401.09135), not from
// the newest; a worker waiting for an exchange does not train on meanwhile.
#include "cohort/async/local_server.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/max.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"

namespace cohort {

GlobalModel::GlobalModel(const ModelTensors& model, const std::optional<OuterOptimizer>& outer)
    : model_(model), weights_(model.copy_of_weights()), changes_(empty_copies(weights_)), buffers_(model.copy_of_buffers()) {
  if (!outer) return;
  outer_rate_ = outer->rate;
  std::vector<Segment> segments;
  for (size_t i = 0; i < weights_.size(); ++i)
    segments.push_back({model.trained[i].name, model.trained[i].tensor.sizes().vec(), 0, weights_[i]});
  outer_.emplace(outer->rule(), std::move(segments));
}

void GlobalModel::begin_exchange() {
  is_first_ = true;
  means_ = copies(buffers_);
}

void GlobalModel::add_change(const FragmentPiece& piece, const at::Tensor& change, double weight) {
  const at::NoGradGuard no_grad;
  if (weight != 1) change.mul_(weight);
  const at::Tensor sum = changes_[piece.parameter].narrow(0, piece.begin, piece.count);
  if (is_first_) sum.copy_(change);
  else sum.add_(change);
}

void GlobalModel::add_buffer(size_t index, const at::Tensor& theirs, double weight) {
  const at::NoGradGuard no_grad;
  const at::Tensor& mean = means_[index];
  if (!theirs.is_floating_point()) mean.copy_(at::max(mean, theirs));
  else if (is_first_) mean.copy_(theirs).mul_(weight);
  else mean.add_(theirs, weight);
}

void GlobalModel::apply(const FragmentPiece& piece) {
  const at::NoGradGuard no_grad;
  const auto& [i, begin, count] = piece;
  const at::Tensor change = changes_[i].narrow(0, begin, count);
  if (!outer_) weights_[i].narrow(0, begin, count).add_(change);
  else if (count == weights_[i].numel()) outer_->update(i, change, outer_rate_, /*gradient_factor=*/-1);
  else outer_->update(i, begin, count, change.const_data_ptr(), outer_rate_, /*gradient_factor=*/-1);
}

void GlobalModel::apply_buffers() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(means_[i]);
}

std::vector<FlatPiece> GlobalModel::pieces(bool saving) {
  if (!outer_) return {};
  std::vector<FlatPiece> out = outer_->state(saving);
  for (FlatPiece& piece : out) piece.name = name_of_outer(piece.name);
  return out;
}

void GlobalModel::load() {
  if (outer_) outer_->load_counts();
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < weights_.size(); ++i) weights_[i].copy_(model_.weights[i]);
  for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(model_.buffers[i].tensor.detach());
}

LocalServer::LocalServer(const torch::nn::Module& module, const LocalServerOptions& options)
    : options_(options), model_(module), global_(model_, options.outer) {}

void LocalServer::copy_to_module() {
  model_.set_weights(global_.weights());
  model_.set_buffers(global_.buffers());
}

void LocalServer::prepare_push(Assignment& assignment, WorkResult result, const StepNumbers& /*numbers*/) {
  assignment.loss = result.loss;
  assignment.tensors = joined(std::move(result.gradients), result.buffers);
}

std::vector<PushOutcome> LocalServer::merge(const std::vector<Assignment*>& pushes) {
  int64_t all = 0;
  for (const Assignment* const push : pushes) all += push->item.num_samples();
  std::vector<PushOutcome> outcomes;
  const std::vector<at::Tensor>& weights = global_.weights();
  global_.begin_exchange();
  for (const Assignment* const push : pushes) {
    outcomes.push_back(version_.outcome(*push, options_.global_batch));
    const double weight = static_cast<double>(push->item.num_samples()) / static_cast<double>(all);
    for (size_t i = 0; i < weights.size(); ++i) global_.add_change({i, 0, weights[i].numel()}, push->tensors[i].view({-1}), weight);
    for (size_t i = 0; i < global_.buffers().size(); ++i) global_.add_buffer(i, push->tensors[weights.size() + i], weight);
    global_.end_worker();
  }
  for (size_t i = 0; i < weights.size(); ++i) global_.apply({i, 0, weights[i].numel()});
  global_.apply_buffers();
  for (const Assignment* const push : pushes) version_.add_push(*push);
  return outcomes;
}

Json LocalServer::state() const { return Json{{"version", version_.version}, {"samples", version_.samples}}; }

std::vector<FlatPiece> LocalServer::loaded_pieces(const Json& state, const std::string& where) {
  if (!state.is_null()) ModelVersion::from(state, where);
  return global_.pieces(/*saving=*/false);
}

void LocalServer::loaded(const Json& state) {
  global_.load();
  if (!state.is_null()) version_ = ModelVersion::from(state, "");
}

LocalWorker::LocalWorker(const torch::nn::Module& module, const UpdateRule& rule)
    : model_(module), optimizer_(rule, model_.trained), pull_buffers_(model_.tensors()) {}

void LocalWorker::begin() {
  base_ = model_.copy_of_weights();
  loss_ = 0;
  samples_ = 0;
}

void LocalWorker::step(const WorkItem& item, const WorkResult& result, const StepNumbers& numbers) {
  optimizer_.local_step(model_, item, result, numbers);
  if (!result.buffers.empty()) model_.set_buffers(result.buffers);
  loss_ += result.loss * static_cast<double>(item.global_samples);
  samples_ += item.num_samples();
}

WorkResult LocalWorker::end() {
  const at::NoGradGuard no_grad;
  WorkResult result{.loss = loss_ / static_cast<double>(samples_), .gradients = {}, .buffers = model_.copy_of_buffers()};
  for (size_t i = 0; i < base_.size(); ++i) result.gradients.push_back(model_.weights[i] - base_[i]);
  return result;
}

PushData LocalWorker::end_push() {
  WorkResult change = end();
  return {.loss = change.loss, .tensors = joined(std::move(change.gradients), change.buffers)};
}

PushData LocalWorker::make_push(const WorkItem& item, WorkResult result, const StepNumbers& numbers) {
  begin();
  step(item, result, numbers);
  return end_push();
}

PushData LocalWorker::work(const AssignedItem& assigned) {
  begin();
  for (const WorkItem& item : assigned.queue.steps_of(assigned.step, assigned.share)) {
    const double rate = assigned.rate_at(item.step);
    step(item, assigned.compute(item, rate), {rate, assigned.numbers.clip_norm});
  }
  return end_push();
}

AppliedPush combined_push(const std::vector<Assignment*>& pushes) {
  const WorkItem& first = pushes.front()->item;
  AppliedPush all{.item = {first.step, 0, {0, 0}, first.global_samples}};
  for (const Assignment* const push : pushes) {
    all.item.positions.end += push->item.num_samples();
    all.loss += push->loss * static_cast<double>(push->item.num_samples());
  }
  all.loss /= static_cast<double>(all.item.global_samples);  // A contribution to the step's mean loss.
  return all;
}

LocalModels::LocalModels(const torch::nn::Module& module, const UpdateRule& rule, const std::optional<OuterOptimizer>& outer,
                         int num_workers, int num_fragments)
    : model_(module),
      rule_(rule),
      num_fragments_(num_fragments),
      global_(model_, outer),
      own_(static_cast<size_t>(num_workers)),
      windows_(static_cast<size_t>(num_fragments), std::vector<int64_t>(static_cast<size_t>(num_workers), 0)) {
  for (int worker = 0; worker < num_workers; ++worker) {
    optimizers_.emplace_back(rule, model_.trained);
    if (has_fragments()) saved_windows_.push_back(at::empty({num_fragments, 2}, at::kDouble));
  }
}

/// Cut type by type, as ranks do.
std::vector<FragmentPiece> LocalModels::fragment_pieces(int fragment) const {
  std::vector<FragmentPiece> pieces;
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    std::vector<int64_t> elements;
    for (const at::Tensor& weights : model_.weights) elements.push_back(weights.scalar_type() == type ? weights.numel() : 0);
    for (const FragmentPiece& piece : pieces_of_fragment(elements, fragment, num_fragments_)) pieces.push_back(piece);
  }
  return pieces;
}

int64_t LocalModels::exchanged_bytes(int fragment) const {
  int64_t bytes = fragment + 1 == num_fragments_ ? model_.num_bytes - model_.gradient_bytes : 0;  // Buffers go with the last fragment.
  for (const FragmentPiece& piece : fragment_pieces(fragment))
    bytes += piece.count * static_cast<int64_t>(model_.weights[piece.parameter].itemsize());
  return bytes;
}

void LocalModels::begin_fragment(int fragment, const std::vector<std::optional<int64_t>>& samples) {
  exchange_ = {.pieces = fragment_pieces(fragment), .weights = {}, .ends_round = fragment + 1 == num_fragments_};
  for (std::vector<int64_t>& window : windows_)
    for (size_t worker = 0; worker < samples.size(); ++worker) window[worker] += samples[worker].value_or(0);
  std::vector<int64_t>& window = windows_[static_cast<size_t>(fragment)];
  int64_t all = 0;
  for (size_t worker = 0; worker < samples.size(); ++worker) all += samples[worker] ? window[worker] : 0;
  for (size_t worker = 0; worker < samples.size(); ++worker)
    exchange_.weights.push_back(samples[worker] ? static_cast<double>(window[worker]) / static_cast<double>(all) : 0);
  std::fill(window.begin(), window.end(), 0);
  global_.begin_exchange();
}

void LocalModels::begin(int worker) {
  const Own& own = own_[static_cast<size_t>(worker)];
  model_.set_weights(own.weights.empty() ? global_.weights() : own.weights);
  model_.set_buffers(own.weights.empty() ? global_.buffers() : own.buffers);
}

double LocalModels::step(int worker, const WorkItem& item, const WorkResult& result, const StepNumbers& numbers) {
  const double norm = optimizers_[static_cast<size_t>(worker)].local_step(model_, item, result, numbers);
  if (!result.buffers.empty()) model_.set_buffers(result.buffers);
  return norm;
}

void LocalModels::end(int worker) {
  const at::NoGradGuard no_grad;
  const double weight = exchange_.weights[static_cast<size_t>(worker)];
  for (const FragmentPiece& piece : exchange_.pieces) {
    const auto& [i, begin, count] = piece;
    global_.add_change(piece, model_.weights[i].narrow(0, begin, count) - global_.weights()[i].narrow(0, begin, count), weight);
  }
  for (size_t i = 0; i < model_.buffers.size() && exchange_.ends_round; ++i)
    global_.add_buffer(i, model_.buffers[i].tensor.detach(), weight);
  global_.end_worker();
  if (has_fragments()) own_[static_cast<size_t>(worker)] = {model_.copy_of_weights(), model_.copy_of_buffers()};
}

void LocalModels::exchange_fragment() {
  const at::NoGradGuard no_grad;
  for (const FragmentPiece& piece : exchange_.pieces) {
    global_.apply(piece);
    const auto& [i, begin, count] = piece;
    for (const Own& own : own_)
      if (!own.weights.empty()) own.weights[i].narrow(0, begin, count).copy_(global_.weights()[i].narrow(0, begin, count));
  }
  if (exchange_.ends_round) global_.apply_buffers();
  for (Own& own : own_)
    if (exchange_.ends_round && !own.weights.empty()) own.buffers = copies(global_.buffers());
  model_.set_weights(global_.weights());
  model_.set_buffers(global_.buffers());
}

void LocalModels::forget(int worker) {
  optimizers_[static_cast<size_t>(worker)] = PushOptimizer(rule_, model_.trained);
  own_[static_cast<size_t>(worker)] = {};
  for (std::vector<int64_t>& window : windows_) window[static_cast<size_t>(worker)] = 0;
}

int64_t LocalModels::bytes_in_flight() const {
  return static_cast<int64_t>(rule_.slots().size()) * model_.gradient_bytes + (has_fragments() ? model_.num_bytes : 0);
}

std::vector<FlatPiece> LocalModels::pieces(bool saving) {
  std::vector<FlatPiece> out;
  for (size_t worker = 0; worker < optimizers_.size(); ++worker)
    for (FlatPiece& piece : optimizers_[worker].pieces(model_.trained)) {
      if (optimizers_.size() > 1) piece.name = name_of_worker(static_cast<int64_t>(worker), piece.name);
      out.push_back(std::move(piece));
    }
  out = joined(std::move(out), global_.pieces(saving));
  for (size_t worker = 0; worker < own_.size() && has_fragments(); ++worker) add_own(worker, saving, out);
  return out;
}

/// A worker without tensors of its own is saved with the global model's. Windows to load into hold -1, which stays if the checkpoint has
/// none.
void LocalModels::add_own(size_t worker, bool saving, std::vector<FlatPiece>& out) {
  Own& own = own_[worker];
  if (!saving) own = {copies(global_.weights()), copies(global_.buffers())};
  const std::vector<at::Tensor>& weights = own.weights.empty() ? global_.weights() : own.weights;
  for (size_t i = 0; i < weights.size(); ++i)
    out.push_back(
        {name_of_own_weights(static_cast<int64_t>(worker), model_.trained[i].name), weights[i], model_.trained[i].tensor.sizes().vec(), 0});
  const at::Tensor& saved = saved_windows_[worker];
  auto* const numbers = saved.mutable_data_ptr<double>();
  for (size_t fragment = 0; fragment < windows_.size(); ++fragment) {
    const std::vector<int64_t>& window = windows_[fragment];
    numbers[2 * fragment] = saving ? static_cast<double>(window[worker]) : -1;
    numbers[2 * fragment + 1] = saving ? static_cast<double>(std::accumulate(window.begin(), window.end(), int64_t{0})) : -1;
  }
  out.push_back({name_of_round(static_cast<int64_t>(worker), num_fragments_), saved.view({-1}), saved.sizes().vec(), 0});
}

Json LocalModels::state() const { return Json::object(); }

std::vector<FlatPiece> LocalModels::loaded_pieces(const Json& state, const std::string& where) {
  if (!state.is_null() && !state.is_object()) fail(ErrorCode::kBadInput, where, ": invalid state of the workers: expected an object");
  return pieces(/*saving=*/false);
}

void LocalModels::loaded(const Json& /*state*/) {
  for (PushOptimizer& optimizer : optimizers_) optimizer.load_counts();
  global_.load();
  for (size_t worker = 0; worker < saved_windows_.size(); ++worker) {
    const double* const numbers = saved_windows_[worker].const_data_ptr<double>();
    const bool was_saved = *numbers >= 0;
    for (size_t fragment = 0; fragment < windows_.size(); ++fragment)
      windows_[fragment][worker] = was_saved ? static_cast<int64_t>(numbers[2 * fragment]) : 0;
    if (was_saved) own_[worker].buffers = copies(global_.buffers());
    else own_[worker] = {};
  }
}

}  // namespace cohort
