// Decoupled local steps.
//
// Definitions: a the global weights (the anchor), w_r those of worker r and b_r the anchor that it began with; n_r the samples of its H
// steps; Q the quorum.
// Steps:
//   1. A free worker gets a, and the next H steps of a share. It updates w_r by the mean gradient of its own samples, with an optimizer of
//      its own, and hands over w_r - b_r.
//   2. When Q of them have come the server waits for the others, at most the grace time, and then makes the exchange with those that are
//      there (RoundGate says when):
//        d = sum over r, in order of shares, of n_r / n (w_r - b_r), n the sum of the n_r
//        local:  a = a + d            diloco:  v = m v - d;  a = a - rate (-d + m v)
//      Buffers (batch norm's running statistics) become their mean by the same weights. All whose change was in it go on with a.
//   3. Who was late hands over later, and is merged by its samples in the exchange of then, as a change of the anchor that it began with.
// With Q = N and nobody lost this is parallel/local/local_steps.cpp, in its order of arithmetic: the same training up to nothing at all.
//
// Cost of an exchange: the bytes of the model down and up for each worker that is in it. Memory of the server: the anchor, the sum,
// diloco's v; of a worker: its anchor and optimizer.
//
// A worker's optimizer stays with it: one that is lost takes it along, and one that comes begins with none. A checkpoint has the anchor, v
// and the optimizer's state of worker 0, which stands beside the server; after --resume worker 0 goes on with it, the others begin anew.
//
// Source: Douillard et al. 2026 (Decoupled DiLoCo, arXiv 2604.21428), from its abstract and summaries: quorum, grace time, merging by what
// learners have seen, a syncer that waits for no single one. Differences: weights are the samples (there: tokens times tokens a step, which
// also favours large batches; here all batches of a share are alike); the grace time is given and does not adapt; the model is exchanged
// whole; a late change counts from the anchor that its worker began with (as in asynchronous DiLoCo, Liu et al. 2024, arXiv 2401.09135),
// not from the newest; who is waiting for an exchange does not train on meanwhile.
#include "cohort/async/local_server.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/max.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/json_fields.h"
#include "cohort/parallel/local/fragments.h"

namespace cohort {

LocalServer::LocalServer(const torch::nn::Module& module, const LocalServerOptions& options)
    : options_(options),
      model_(module),
      anchors_(model_.copy_of_weights()),
      buffers_(model_.copy_of_buffers()),
      changes_(empty_copies(anchors_)),
      averages_(empty_copies(buffers_)) {
  if (!options.outer) return;
  std::vector<Segment> segments;
  for (size_t i = 0; i < anchors_.size(); ++i)
    segments.push_back({model_.trained[i].name, model_.trained[i].tensor.sizes().vec(), 0, anchors_[i]});
  outer_.emplace(options.outer->rule(), std::move(segments));
}

std::vector<at::Tensor> LocalServer::served() const {
  std::vector<at::Tensor> tensors = anchors_;
  tensors.insert(tensors.end(), buffers_.begin(), buffers_.end());
  return tensors;
}

void LocalServer::show() {
  model_.set_weights(anchors_);
  model_.set_buffers(buffers_);
}

void LocalServer::pull(Work& work) {
  work.base_version = version_;
  work.base_samples = samples_;
}

void LocalServer::worked(Work& work, TicketResult result, const StepNumbers& /*numbers*/) {
  work.loss = result.loss;
  work.tensors = handed_tensors(std::move(result));
}

/// Step 2 of one worker.
void LocalServer::add(const Work& work, double share, bool is_first) {
  for (size_t i = 0; i < anchors_.size(); ++i) {
    const at::Tensor change = work.tensors[i].view({-1});
    if (share != 1) change.mul_(share);
    if (is_first) changes_[i].copy_(change);
    else changes_[i].add_(change);
  }
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const at::Tensor& theirs = work.tensors[anchors_.size() + i];
    if (!theirs.is_floating_point()) averages_[i].copy_(at::max(is_first ? buffers_[i] : averages_[i], theirs));
    else if (is_first) averages_[i].copy_(theirs).mul_(share);
    else averages_[i].add_(theirs, share);
  }
}

std::vector<PushOutcome> LocalServer::merge(const std::vector<Work*>& works) {
  const at::NoGradGuard no_grad;
  int64_t all = 0;
  for (const Work* const work : works) all += work->ticket.num_samples();
  std::vector<PushOutcome> outcomes;
  for (Work* const work : works) {
    outcomes.push_back({.staleness = version_ - work->base_version,
                        .late_steps = static_cast<double>(samples_ - work->base_samples) / static_cast<double>(options_.global_batch)});
    add(*work, static_cast<double>(work->ticket.num_samples()) / static_cast<double>(all), outcomes.size() == 1);
  }
  for (size_t i = 0; i < anchors_.size(); ++i) {
    if (outer_) outer_->update(i, changes_[i], options_.outer->rate, /*gradient_factor=*/-1);
    else anchors_[i].add_(changes_[i]);
  }
  for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(averages_[i]);
  version_ += std::ssize(works);
  samples_ += all;
  return outcomes;
}

std::vector<FlatPiece> LocalServer::pieces(bool saving) {
  std::vector<FlatPiece> out;
  if (!outer_) return out;
  for (FlatPiece& piece : outer_->state(saving)) {
    piece.name = name_of_outer(piece.name);
    out.push_back(std::move(piece));
  }
  return out;
}

Json LocalServer::state() const { return Json{{"version", version_}, {"samples", samples_}}; }

std::vector<FlatPiece> LocalServer::loaded_pieces(const Json& state, const std::string& where) {
  const auto is_count = [&](const char* key) { return state.is_object() && state.contains(key) && is_natural(state[key]); };
  if (!state.is_null() && !(is_count("version") && is_count("samples")))
    fail(ErrorCode::kBadInput, where, ": the state of the exchanges is damaged");
  return pieces(/*saving=*/false);
}

void LocalServer::loaded(const Json& state) {
  if (outer_) outer_->load_counts();
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < anchors_.size(); ++i) anchors_[i].copy_(model_.weights[i]);
  const std::vector<at::Tensor> buffers = model_.copy_of_buffers();
  for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(buffers[i]);
  if (state.is_null()) return;
  version_ = state["version"].get<int64_t>();
  samples_ = state["samples"].get<int64_t>();
}

LocalWorker::LocalWorker(const torch::nn::Module& module, const UpdateRule& rule)
    : model_(module), optimizer_(rule, model_.trained), pulled_(model_.tensors()) {}

void LocalWorker::begin() {
  base_ = model_.copy_of_weights();
  loss_ = 0;
  samples_ = 0;
}

void LocalWorker::step(const Ticket& ticket, const TicketResult& result, const StepNumbers& numbers) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& gradient : result.gradients)
    if (gradient.defined() && ticket.weight() != 1) gradient.mul_(1 / ticket.weight());  // Of the mean over its own samples.
  optimizer_.apply({.weight = 1, .learning_rate = numbers.learning_rate, .clip_norm = numbers.clip_norm}, model_.weights, result.gradients);
  if (!result.buffers.empty()) model_.set_buffers(result.buffers);
  loss_ += result.loss * static_cast<double>(ticket.global_samples);
  samples_ += ticket.num_samples();
}

TicketResult LocalWorker::end() {
  const at::NoGradGuard no_grad;
  TicketResult result{.loss = loss_ / static_cast<double>(samples_), .gradients = {}, .buffers = model_.copy_of_buffers()};
  for (size_t i = 0; i < base_.size(); ++i) result.gradients.push_back(model_.weights[i] - base_[i]);
  return result;
}

HandedOver LocalWorker::hand_over(const Ticket& ticket, TicketResult result, const StepNumbers& numbers) {
  begin();
  step(ticket, result, numbers);
  TicketResult change = end();
  return {.loss = change.loss, .tensors = handed_tensors(std::move(change))};
}

HandedOver LocalWorker::work(const OrderedTicket& order) {
  begin();
  for (const Ticket& ticket : order.tickets.steps_of(order.step, order.share)) {
    const double rate = order.rate_at(ticket.step);
    step(ticket, order.compute(ticket, rate), {rate, order.numbers.clip_norm});
  }
  TicketResult change = end();
  return {.loss = change.loss, .tensors = handed_tensors(std::move(change))};
}

AppliedPush as_one_push(const std::vector<Work*>& works) {
  const Ticket& first = works.front()->ticket;
  AppliedPush push{.ticket = {first.step, 0, {0, 0}, first.global_samples}};
  for (const Work* const work : works) {
    push.ticket.positions.end += work->ticket.num_samples();
    push.loss += work->loss * static_cast<double>(work->ticket.num_samples());
  }
  push.loss /= static_cast<double>(push.ticket.global_samples);  // As a part of a step's, which has the mean over its samples.
  return push;
}

std::vector<at::Tensor> handed_tensors(TicketResult result) {
  std::vector<at::Tensor> tensors = std::move(result.gradients);
  tensors.insert(tensors.end(), result.buffers.begin(), result.buffers.end());
  return tensors;
}

// The arithmetic is that of parallel/local/local_steps.cpp, in its order: a worker's own steps by the mean gradient of its own samples;
// then the changes, each times its share of the samples, added up in the order of the workers; the outer step, or the sum itself, from the
// anchor. A worker that does not end its part of a round has the share 0 of it. Memory: one model with its anchor and sum, and N
// optimizers; with fragments in turn N models too.

LocalModels::LocalModels(const torch::nn::Module& module, const UpdateRule& rule, const std::optional<OuterOptimizer>& outer,
                         int num_workers, int num_fragments)
    : model_(module),
      rule_(rule),
      num_fragments_(num_fragments),
      anchors_(model_.copy_of_weights()),
      changes_(model_.copy_of_weights()),
      buffers_(model_.copy_of_buffers()),
      own_(static_cast<size_t>(num_workers)),
      windows_(static_cast<size_t>(num_fragments), std::vector<int64_t>(static_cast<size_t>(num_workers), 0)) {
  for (int worker = 0; worker < num_workers; ++worker) optimizers_.emplace_back(rule, model_.trained);
  if (has_fragments())
    for (int worker = 0; worker < num_workers; ++worker) saved_windows_.push_back(at::empty({num_fragments, 2}, at::kDouble));
  if (!outer) return;
  outer_rate_ = outer->rate;
  std::vector<Segment> segments;
  for (size_t i = 0; i < anchors_.size(); ++i)
    segments.push_back({model_.trained[i].name, model_.trained[i].tensor.sizes().vec(), 0, anchors_[i]});
  outer_.emplace(outer->rule(), std::move(segments));
}

/// As ranks cut it: each type by itself.
std::vector<FragmentPiece> LocalModels::pieces_of(int fragment) const {
  std::vector<FragmentPiece> pieces;
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    std::vector<int64_t> elements;
    for (const at::Tensor& anchor : anchors_) elements.push_back(anchor.scalar_type() == type ? anchor.numel() : 0);
    for (const FragmentPiece& piece : pieces_of_fragment(elements, fragment, num_fragments_)) pieces.push_back(piece);
  }
  return pieces;
}

int64_t LocalModels::exchanged_bytes(int fragment) const {
  int64_t bytes = fragment + 1 == num_fragments_ ? model_.num_bytes - model_.gradient_bytes : 0;  // Buffers, at the end of a round.
  for (const FragmentPiece& piece : pieces_of(fragment)) bytes += piece.count * static_cast<int64_t>(anchors_[piece.parameter].itemsize());
  return bytes;
}

void LocalModels::begin_part(int fragment, const std::vector<std::optional<int64_t>>& samples) {
  part_ = {.fragment = fragment, .pieces = pieces_of(fragment), .shares = {}, .ends_round = fragment + 1 == num_fragments_};
  for (std::vector<int64_t>& window : windows_)
    for (size_t worker = 0; worker < samples.size(); ++worker) window[worker] += samples[worker].value_or(0);
  std::vector<int64_t>& window = windows_[static_cast<size_t>(fragment)];
  int64_t all = 0;
  for (size_t worker = 0; worker < samples.size(); ++worker) all += samples[worker] ? window[worker] : 0;
  for (size_t worker = 0; worker < samples.size(); ++worker)
    part_.shares.push_back(samples[worker] ? static_cast<double>(window[worker]) / static_cast<double>(all) : 0);
  std::fill(window.begin(), window.end(), 0);
  averages_ = copies(buffers_);
}

void LocalModels::begin(int worker) {
  const Own& own = own_[static_cast<size_t>(worker)];
  model_.set_weights(own.weights.empty() ? anchors_ : own.weights);
  model_.set_buffers(own.weights.empty() ? buffers_ : own.buffers);
}

double LocalModels::step(int worker, const Ticket& ticket, const TicketResult& result, const StepNumbers& numbers) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& gradient : result.gradients)
    if (gradient.defined() && ticket.weight() != 1) gradient.mul_(1 / ticket.weight());  // Of the mean over its own samples.
  const double norm = optimizers_[static_cast<size_t>(worker)].apply(
      {.weight = 1, .learning_rate = numbers.learning_rate, .clip_norm = numbers.clip_norm}, model_.weights, result.gradients);
  if (!result.buffers.empty()) model_.set_buffers(result.buffers);
  return norm;
}

void LocalModels::end(int worker) {
  const at::NoGradGuard no_grad;
  const double share = part_.shares[static_cast<size_t>(worker)];
  for (const auto& [i, begin, count] : part_.pieces) {
    at::Tensor change = model_.weights[i].narrow(0, begin, count) - anchors_[i].narrow(0, begin, count);
    if (share != 1) change.mul_(share);
    const at::Tensor sum = changes_[i].narrow(0, begin, count);
    if (part_.is_first) sum.copy_(change);
    else sum.add_(change);
  }
  for (size_t i = 0; i < buffers_.size() && part_.ends_round; ++i) {
    const at::Tensor mine = model_.buffers[i].tensor.detach();
    if (!mine.is_floating_point()) averages_[i].copy_(at::max(averages_[i], mine));
    else if (part_.is_first) averages_[i].copy_(mine).mul_(share);
    else averages_[i].add_(mine, share);
  }
  part_.is_first = false;
  if (has_fragments()) own_[static_cast<size_t>(worker)] = {model_.copy_of_weights(), model_.copy_of_buffers()};
}

void LocalModels::end_part() {
  const at::NoGradGuard no_grad;
  for (const auto& [i, begin, count] : part_.pieces) {
    const at::Tensor change = changes_[i].narrow(0, begin, count), anchor = anchors_[i].narrow(0, begin, count);
    if (!outer_) anchor.add_(change);
    else if (count == anchors_[i].numel()) outer_->update(i, change, outer_rate_, /*gradient_factor=*/-1);
    else outer_->update(i, begin, count, change.const_data_ptr(), outer_rate_, /*gradient_factor=*/-1);
    for (const Own& own : own_)
      if (!own.weights.empty()) own.weights[i].narrow(0, begin, count).copy_(anchor);
  }
  if (part_.ends_round) buffers_ = averages_;
  for (Own& own : own_)
    if (part_.ends_round && !own.weights.empty()) own.buffers = copies(buffers_);
  model_.set_weights(anchors_);
  model_.set_buffers(buffers_);
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
  if (outer_)
    for (FlatPiece& piece : outer_->state(saving)) {
      piece.name = name_of_outer(piece.name);
      out.push_back(std::move(piece));
    }
  for (size_t worker = 0; worker < own_.size() && has_fragments(); ++worker) add_own(worker, saving, out);
  return out;
}

/// A worker that has nothing of its own has what was exchanged last. The tensors to read into say -1 where the checkpoint has none.
void LocalModels::add_own(size_t worker, bool saving, std::vector<FlatPiece>& out) {
  Own& own = own_[worker];
  if (!saving) own = {copies(anchors_), copies(buffers_)};
  const std::vector<at::Tensor>& weights = own.weights.empty() ? anchors_ : own.weights;
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

std::vector<FlatPiece> LocalModels::saved_pieces() { return pieces(/*saving=*/true); }

std::vector<FlatPiece> LocalModels::loaded_pieces(const Json& state, const std::string& where) {
  if (!state.is_null() && !state.is_object()) fail(ErrorCode::kBadInput, where, ": the state of the workers is damaged");
  return pieces(/*saving=*/false);
}

void LocalModels::loaded(const Json& /*state*/) {
  for (PushOptimizer& optimizer : optimizers_) optimizer.load_counts();
  if (outer_) outer_->load_counts();
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < anchors_.size(); ++i) anchors_[i].copy_(model_.weights[i]);
  buffers_ = model_.copy_of_buffers();
  for (size_t worker = 0; worker < saved_windows_.size(); ++worker) {
    const double* const numbers = saved_windows_[worker].const_data_ptr<double>();
    const bool is_there = *numbers >= 0;
    for (size_t fragment = 0; fragment < windows_.size(); ++fragment)
      windows_[fragment][worker] = is_there ? static_cast<int64_t>(numbers[2 * fragment]) : 0;
    if (is_there) own_[worker].buffers = copies(buffers_);
    else own_[worker] = {};
  }
}

}  // namespace cohort
