// The arithmetic is that of parallel/local/local_steps.cpp, in its order: a worker's own steps by the mean gradient of its own samples;
// then the changes, each times its share of the samples, added up in the order of the workers; the outer step, or the sum itself, from the
// anchor. A worker that does not end its round has the share 0 of it. Memory: one model with its anchor and sum, and N optimizers.
#include "cohort/train/async/local_models.h"

#include <ATen/ops/max.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <numeric>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/parallel/local/state_names.h"

namespace cohort {
namespace {

UpdateRule outer_rule(const OuterOptimizer& outer) {
  return {.kind = outer.momentum > 0 ? UpdateRule::Kind::kNesterov : UpdateRule::Kind::kSgd, .momentum = outer.momentum};
}

}  // namespace

LocalModels::LocalModels(const torch::nn::Module& module, const UpdateRule& rule, const std::optional<OuterOptimizer>& outer,
                         int num_workers)
    : model_(module),
      rule_(rule),
      anchors_(model_.copy_of_weights()),
      changes_(model_.copy_of_weights()),
      buffers_(model_.copy_of_buffers()) {
  for (int worker = 0; worker < num_workers; ++worker) optimizers_.emplace_back(rule, model_.trained);
  if (!outer) return;
  outer_rate_ = outer->rate;
  std::vector<Segment> segments;
  for (size_t i = 0; i < anchors_.size(); ++i)
    segments.push_back({model_.trained[i].name, model_.trained[i].tensor.sizes().vec(), 0, anchors_[i]});
  outer_.emplace(outer_rule(*outer), std::move(segments));
}

void LocalModels::begin_round(const std::vector<int64_t>& samples) {
  const auto all = static_cast<double>(std::accumulate(samples.begin(), samples.end(), int64_t{0}));
  shares_.clear();
  for (const int64_t mine : samples) shares_.push_back(static_cast<double>(mine) / all);
  averages_ = copies(buffers_);
  is_first_ = true;
}

void LocalModels::begin(int /*worker*/) {
  model_.set_weights(anchors_);
  model_.set_buffers(buffers_);
}

double LocalModels::step(int worker, const Ticket& ticket, TicketResult result, const StepNumbers& numbers) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& gradient : result.gradients)
    if (gradient.defined() && ticket.weight() != 1) gradient.mul_(1 / ticket.weight());  // Of the mean over its own samples.
  const double norm = optimizers_[static_cast<size_t>(worker)].apply(
      {.weight = 1, .learning_rate = numbers.learning_rate, .clip_norm = numbers.clip_norm}, model_.weights, result.gradients);
  if (!result.buffers.empty()) model_.set_buffers(result.buffers);
  return norm;
}

void LocalModels::end(int worker) {
  const at::NoGradGuard no_grad;
  const double share = shares_[static_cast<size_t>(worker)];
  for (size_t i = 0; i < anchors_.size(); ++i) {
    at::Tensor change = model_.weights[i] - anchors_[i];
    if (share != 1) change.mul_(share);
    if (is_first_) changes_[i].copy_(change);
    else changes_[i].add_(change);
  }
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const at::Tensor mine = model_.buffers[i].tensor.detach();
    if (!mine.is_floating_point()) averages_[i].copy_(at::max(averages_[i], mine));
    else if (is_first_) averages_[i].copy_(mine).mul_(share);
    else averages_[i].add_(mine, share);
  }
  is_first_ = false;
}

void LocalModels::end_round() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < anchors_.size(); ++i) {
    if (outer_) outer_->update(i, changes_[i], outer_rate_, /*gradient_factor=*/-1);
    else anchors_[i].add_(changes_[i]);
  }
  buffers_ = averages_;
  begin(0);
}

void LocalModels::forget(int worker) { optimizers_[static_cast<size_t>(worker)] = PushOptimizer(rule_, model_.trained); }

int64_t LocalModels::bytes_in_flight() const { return static_cast<int64_t>(rule_.slots().size()) * model_.gradient_bytes; }

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
  return out;
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
}

}  // namespace cohort
