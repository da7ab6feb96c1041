// Local SGD and DiLoCo.
//
// Definitions: p workers, a the weights after the last exchange (the anchor, the same on all), w_r those of worker r, n_r the samples that
// it
//   has trained on since, n their sum, c() a compressor with error feedback or nothing.
// Steps of a round:
//   1. H times: each worker updates w_r by the mean gradient of its own samples, with an optimizer of its own. No message.
//   2. d = sum over r, in rank order, of c(n_r / n (w_r - a)): the mean change, the same bits on all ranks.
//   3. local:  a = a + d                           diloco: v = m v - d;  a = a - rate (-d + m v)   (Nesterov as LibTorch has it, outer
//      gradient -d)
//   4. w_r = a. Buffers (batch norm's running statistics) become their average by the same weights.
//
// Cost of a round: one sum of n floats (fp16: half, int8: a quarter), and one of the buffers where the model has any; `step` sends that in
// each of the H steps. Memory beyond that of one process: the anchor and the changes (2 n floats), diloco: v (n), a compressor's residual
// (n) and codes.
//
// The optimizer's state is never exchanged: a worker's momentum, and Adam's moments and counts, go on from its own gradients after an
// exchange. So momentum is what Lin et al. call local, and as DiLoCo has it. Averaging it too (Yu et al. 2019) would send two or three
// times the bytes.
//
// Sources: Stich 2018 ("Local SGD Converges Fast and Communicates Little", algorithm 1); Lin et al. 2018 ("Don't Use Large Mini-Batches,
// Use Local SGD"); Douillard et al. 2023 (DiLoCo, algorithm 1). Differences: changes are averaged and not weights, which rounds less and is
// what compression and the outer optimizer need; workers weigh by their samples, so uneven shares are no bias; compression with error
// feedback. All of the exchange is in the host's memory, also for weights on a GPU: once in H steps, and then ranks on different devices
// keep the same bits.
#include "cohort/parallel/local/local_steps.h"

#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <chrono>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/parallel/agreement.h"
#include "cohort/parallel/initial_broadcast.h"
#include "cohort/parallel/local/state_names.h"
#include "cohort/parallel/tensor_alias.h"

namespace cohort {
namespace {

UpdateRule outer_rule(const OuterOptimizer& outer) {
  const bool has_momentum = outer.momentum > 0;
  return {.kind = has_momentum ? UpdateRule::Kind::kNesterov : UpdateRule::Kind::kSgd, .momentum = outer.momentum};
}

/// `tensor` as it lies in memory, 1-d.
at::Tensor flat_values(const NamedTensor& parameter) { return parameter.tensor.detach().view({-1}); }

}  // namespace

LocalSteps::LocalSteps(torch::nn::Module& module, Group group, const LocalStepsOptions& options)
    : module_(module),
      group_(std::move(group)),
      trained_(trained_parameters(distinct_parameters(module))),
      inner_(module, Group(), options.rule) {
  const at::NoGradGuard no_grad;
  if (group_.size() > 1) {
    check_same_model(group_, distinct_parameters(module));
    check_forward_writes(module, group_.size());
    broadcast_model(module, group_);
  }
  buffers_.emplace(module, group_);
  if (options.outer) outer_rate_ = options.outer->rate;
  if (group_.size() > 1 || options.outer) plan(options);
}

/// The anchors, and the memory in which changes travel.
void LocalSteps::plan(const LocalStepsOptions& options) {
  for (const NamedTensor& parameter : trained_) anchors_.push_back(flat_values(parameter).cpu().clone());
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    Changes changes;
    CompressedBuffer described{.name = "the change of the weights", .parts = {}};
    int64_t count = 0;
    for (size_t i = 0; i < trained_.size(); ++i) {
      if (anchors_[i].scalar_type() != type) continue;
      changes.parameters.push_back(i);
      described.parts.push_back({count, trained_[i].tensor.sizes().vec()});
      count += anchors_[i].numel();
    }
    if (count == 0) continue;
    changes.flat = group_.allocate(count, at::TensorOptions().dtype(type));
    int64_t begin = 0;
    for (const size_t i : changes.parameters) {
      changes.places.push_back(alias_of(changes.flat, begin, {anchors_[i].numel()}));
      begin += anchors_[i].numel();
    }
    if (type == at::kFloat && group_.size() > 1) changes.compressor = make_compressor(options.compress, described, count, options.seed);
    changes_.push_back(std::move(changes));
  }
  if (!options.outer) return;
  std::vector<Segment> segments;
  for (size_t i = 0; i < trained_.size(); ++i) segments.push_back({trained_[i].name, trained_[i].tensor.sizes().vec(), 0, anchors_[i]});
  outer_.emplace(outer_rule(*options.outer), std::move(segments));
}

void LocalSteps::set_samples(int64_t mine, int64_t all) {
  step_mine_ = mine;
  step_all_ = all;
}

void LocalSteps::abandon_step() {
  inner_.abandon_step();
  inner_.zero_grad();
  step_mine_ = step_all_ = 0;
}

StepOutcome LocalSteps::step(const StepOptions& options) {
  const StepOutcome outcome = inner_.step(options);
  round_mine_ += step_mine_;
  round_all_ += step_all_;
  step_mine_ = step_all_ = 0;
  statistics_.exposed_seconds = 0;
  if (options.exchange) exchange();
  return outcome;
}

void LocalSteps::exchange() {
  const at::NoGradGuard no_grad;
  const auto began = std::chrono::steady_clock::now();
  const double share = round_all_ > 0 ? static_cast<double>(round_mine_) / static_cast<double>(round_all_) : 1.0 / group_.size();
  round_mine_ = round_all_ = 0;
  statistics_.bytes = statistics_.sent_bytes = 0;
  statistics_.num_buckets = static_cast<int>(changes_.size());
  for (Changes& changes : changes_) {
    sum_changes(changes, share);
    for (size_t place = 0; place < changes.places.size(); ++place) apply(changes.parameters[place], changes.places[place]);
  }
  buffers_->average(share);
  statistics_.buffer_bytes = buffers_->exchanged_bytes();
  ++statistics_.num_exchanges;
  statistics_.exposed_seconds = seconds_since(began);
}

/// Step 2.
void LocalSteps::sum_changes(Changes& changes, double share) {
  for (size_t place = 0; place < changes.places.size(); ++place) {
    const size_t i = changes.parameters[place];
    changes.places[place].copy_(flat_values(trained_[i]));
    changes.places[place].sub_(anchors_[i]);
  }
  if (share == 0) changes.flat.zero_();  // What has no sample counts nothing, not even an infinity.
  else if (share != 1) changes.flat.mul_(share);
  statistics_.bytes += static_cast<int64_t>(changes.flat.nbytes());
  if (changes.compressor) {
    changes.compressor->all_reduce_sum(group_, changes.flat, "the change of the weights");
    statistics_.sent_bytes += changes.compressor->sent_bytes();
  } else {
    group_.all_reduce_sum(changes.flat, "the change of the weights");
  }
}

/// Steps 3 and 4.
void LocalSteps::apply(size_t parameter, const at::Tensor& change) {
  at::Tensor& anchor = anchors_[parameter];
  if (outer_) outer_->update(parameter, change, outer_rate_, /*gradient_factor=*/-1);
  else anchor.add_(change);
  flat_values(trained_[parameter]).copy_(anchor);
}

void LocalSteps::start_from_weights() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < anchors_.size(); ++i) anchors_[i].copy_(flat_values(trained_[i]));
  buffers_.emplace(module_, group_);
  round_mine_ = round_all_ = 0;
}

void LocalSteps::load_weights() {
  inner_.load_weights();
  broadcast_model(module_, group_);
  start_from_weights();
}

MemoryForecast LocalSteps::memory_forecast() const {
  MemoryForecast forecast = inner_.memory_forecast();
  for (const at::Tensor& anchor : anchors_) forecast.weight_bytes += static_cast<int64_t>(anchor.nbytes());
  for (const Changes& changes : changes_) forecast.gradient_bytes += static_cast<int64_t>(changes.flat.nbytes());
  if (outer_) forecast.optimizer_bytes += outer_->state_bytes();
  return forecast;
}

/// Weights and outer momentum are the same on all ranks, so rank 0 saves them; of the optimizer's state each has its own, under its own
/// name where there are several.
std::vector<FlatPiece> LocalSteps::pieces(bool saving) {
  const int rank = group_.rank();
  const bool keeps_shared = !saving || rank == 0;
  std::vector<FlatPiece> pieces;
  for (FlatPiece& piece : saving ? inner_.saved_pieces() : inner_.loaded_pieces()) {
    const bool is_shared = piece.name.starts_with("model/");
    if (is_shared && !keeps_shared) continue;
    if (!is_shared && group_.size() > 1) piece.name = name_of_worker(rank, piece.name);
    pieces.push_back(std::move(piece));
  }
  if (outer_ && keeps_shared)
    for (FlatPiece& piece : outer_->state(saving)) {
      piece.name = name_of_outer(piece.name);
      pieces.push_back(std::move(piece));
    }
  for (const Changes& changes : changes_) {
    if (!changes.compressor) continue;
    for (const auto& [slot, tensor] : changes.compressor->state()) {
      const at::Tensor flat = tensor.view({-1});
      pieces.push_back({"compress/change/" + slot, flat, {group_.size(), flat.numel()}, rank * flat.numel()});
    }
  }
  return pieces;
}

void LocalSteps::loaded() {
  inner_.loaded();
  start_from_weights();
  group_.barrier();
}

}  // namespace cohort
