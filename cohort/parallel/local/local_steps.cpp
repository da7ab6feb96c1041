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
// With F fragments 2 to 4 are done for each slice of the parameters after a step of its own (fragments.h), with n_r since that slice's last
// exchange; buffers with the last slice, at the end of the round. w_r and a then differ at all times. What is evaluated and saved, at the
// end of a round, is a: each slice as it was last exchanged, the same bits on all ranks, and no step is otherwise for it. A checkpoint has
// beside it each worker's w_r and n_r, without which a resumed run would not be the same.
//
// Cost of a round: one sum of n floats (fp16: half, int8: a quarter), and one of the buffers where the model has any; `step` sends that in
// each of the H steps. With fragments F sums of n / F floats. Memory beyond that of one process: the anchor and the changes (2 n floats),
// diloco: v (n), a compressor's residual (n) and codes.
//
// The optimizer's state is never exchanged: a worker's momentum, and Adam's moments and counts, go on from its own gradients after an
// exchange. So momentum is what Lin et al. call local, and as DiLoCo has it. Averaging it too (Yu et al. 2019) would send two or three
// times the bytes.
//
// Sources: Stich 2018 ("Local SGD Converges Fast and Communicates Little", algorithm 1); Lin et al. 2018 ("Don't Use Large Mini-Batches,
// Use Local SGD"); Douillard et al. 2023 (DiLoCo, algorithm 1). Differences: changes are averaged and not weights, which rounds less and is
// what compression and the outer optimizer need; workers weigh by their samples, so uneven shares are no bias; compression with error
// feedback. All of the exchange is in the host's memory, also for weights on a GPU: once in H steps, and then ranks on different devices
// keep the same bits. Fragments: Douillard et al. 2025 (Streaming DiLoCo, arXiv 2501.18512, algorithm 2), whose fragments are groups of
// layers: slices are of equal bytes, whatever the model. There an exchange also runs beside the next steps; here it is waited for.
#include "cohort/parallel/local/local_steps.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <chrono>
#include <utility>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/parallel/common/agreement.h"
#include "cohort/parallel/common/flat_piece.h"

namespace cohort {
namespace {

/// The values as 1-d view.
at::Tensor flat_values(const NamedTensor& parameter) { return parameter.tensor.detach().view({-1}); }

}  // namespace

UpdateRule OuterOptimizer::rule() const {
  return {.kind = momentum > 0 ? UpdateRule::Kind::kNesterov : UpdateRule::Kind::kSgd, .momentum = momentum};
}

std::optional<OuterOptimizer> OuterOptimizer::of(const SyncMode& sync, double rate, double momentum) {
  if (sync.kind != SyncKind::kDiloco) return std::nullopt;
  return OuterOptimizer{.rate = rate, .momentum = momentum};
}

LocalSteps::LocalSteps(torch::nn::Module& module, Group group, const LocalStepsOptions& options)
    : module_(module),
      group_(std::move(group)),
      trained_(trained_parameters(distinct_parameters(module))),
      inner_(module, Group(), options.rule),
      steps_(options.steps),
      windows_(static_cast<size_t>(options.fragments)) {
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

/// Creates the anchors and the buffers of changes.
void LocalSteps::plan(const LocalStepsOptions& options) {
  for (const NamedTensor& parameter : trained_) anchors_.push_back(flat_values(parameter).cpu().clone());
  for (int fragment = 0; fragment < options.fragments; ++fragment)
    for (const at::ScalarType type : {at::kFloat, at::kDouble})
      if (Changes changes = changes_of(fragment, type, options); !changes.pieces.empty()) changes_.push_back(std::move(changes));
  if (has_fragments()) saved_windows_ = at::empty({options.fragments, 2}, at::kDouble);
  if (!options.outer) return;
  std::vector<Segment> segments;
  for (size_t i = 0; i < trained_.size(); ++i) segments.push_back({trained_[i].name, trained_[i].tensor.sizes().vec(), 0, anchors_[i]});
  outer_.emplace(options.outer->rule(), std::move(segments));
}

LocalSteps::Changes LocalSteps::changes_of(int fragment, at::ScalarType type, const LocalStepsOptions& options) {
  std::vector<int64_t> elements;
  for (const at::Tensor& anchor : anchors_) elements.push_back(anchor.scalar_type() == type ? anchor.numel() : 0);
  Changes changes{.fragment = fragment, .pieces = pieces_of_fragment(elements, fragment, options.fragments), .flat = {}, .places = {}};
  if (changes.pieces.empty()) return changes;
  CompressedBuffer described{.name = "the change of the weights", .parts = {}};
  int64_t count = 0;
  for (const FragmentPiece& piece : changes.pieces) {
    const at::Tensor& whole = trained_[piece.parameter].tensor;
    described.parts.push_back({count, piece.count == whole.numel() ? whole.sizes().vec() : std::vector<int64_t>{piece.count}});
    count += piece.count;
  }
  changes.flat = group_.allocate(count, at::TensorOptions().dtype(type));
  int64_t begin = 0;
  for (const FragmentPiece& piece : changes.pieces) {
    changes.places.push_back(alias_of(changes.flat, begin, {piece.count}));
    begin += piece.count;
  }
  if (type == at::kFloat && group_.size() > 1) changes.compressor = make_compressor(options.compress, described, count, options.seed);
  return changes;
}

void LocalSteps::set_samples(int64_t mine, int64_t all) { step_ = {mine, all}; }

void LocalSteps::zero_grad() {
  show(/*whole=*/false);
  inner_.zero_grad();
}

void LocalSteps::abandon_step() {
  inner_.abandon_step();
  inner_.zero_grad();
  step_ = {};
}

StepOutcome LocalSteps::step(const StepOptions& options) {
  const StepOutcome outcome = inner_.step(options);
  ++done_;
  for (Window& window : windows_) {
    window.mine += step_.mine;
    window.all += step_.all;
  }
  step_ = {};
  statistics_.exposed_seconds = 0;
  const int num_fragments = static_cast<int>(windows_.size());
  for (int fragment = 0; fragment + 1 < num_fragments && !options.exchange; ++fragment)
    if (step_of_fragment(fragment, num_fragments, steps_) == done_) exchange(fragment);
  if (!options.exchange) return outcome;
  exchange(num_fragments - 1);
  done_ = 0;
  show(/*whole=*/true);
  return outcome;
}

void LocalSteps::exchange(int fragment) {
  const at::NoGradGuard no_grad;
  const auto began = std::chrono::steady_clock::now();
  const auto [mine, all] = std::exchange(windows_[static_cast<size_t>(fragment)], {});
  const double share = all > 0 ? static_cast<double>(mine) / static_cast<double>(all) : 1.0 / group_.size();
  statistics_.bytes = statistics_.sent_bytes = statistics_.buffer_bytes = 0;
  statistics_.num_buckets = 0;
  for (Changes& changes : changes_) {
    if (changes.fragment != fragment) continue;
    ++statistics_.num_buckets;
    sum_changes(changes, share);
    for (size_t place = 0; place < changes.places.size(); ++place) apply(changes.pieces[place], changes.places[place]);
  }
  if (fragment + 1 == std::ssize(windows_)) {
    buffers_->average(share);
    statistics_.buffer_bytes = buffers_->exchanged_bytes();
  }
  ++statistics_.num_exchanges;
  statistics_.exposed_seconds = seconds_since(began);
}

/// Step 2 of the algorithm.
void LocalSteps::sum_changes(Changes& changes, double share) {
  for (size_t place = 0; place < changes.places.size(); ++place) {
    const auto& [i, begin, count] = changes.pieces[place];
    changes.places[place].copy_(flat_values(trained_[i]).narrow(0, begin, count));
    changes.places[place].sub_(anchors_[i].narrow(0, begin, count));
  }
  if (share == 0) changes.flat.zero_();  // Without samples nothing counts, not even an infinity.
  else if (share != 1) changes.flat.mul_(share);
  statistics_.bytes += static_cast<int64_t>(changes.flat.nbytes());
  if (changes.compressor) {
    changes.compressor->all_reduce_sum(group_, changes.flat, "the change of the weights");
    statistics_.sent_bytes += changes.compressor->sent_bytes();
  } else {
    group_.all_reduce_sum(changes.flat, "the change of the weights");
  }
}

/// Steps 3 and 4 of the algorithm.
void LocalSteps::apply(const FragmentPiece& piece, const at::Tensor& change) {
  const auto& [i, begin, count] = piece;
  const at::Tensor anchor = anchors_[i].narrow(0, begin, count);
  if (!outer_) anchor.add_(change);
  else if (count == anchors_[i].numel()) outer_->update(i, change, outer_rate_, /*gradient_factor=*/-1);
  else outer_->update(i, begin, count, change.const_data_ptr(), outer_rate_, /*gradient_factor=*/-1);
  flat_values(trained_[i]).narrow(0, begin, count).copy_(anchor);
}

/// Makes the module hold the last exchanged values, or this worker's own weights.
void LocalSteps::show(bool whole) {
  if (whole == is_whole_ || !has_fragments()) return;
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < anchors_.size(); ++i) {
    const at::Tensor values = flat_values(trained_[i]), before = values.cpu().clone();
    values.copy_(anchors_[i]);
    anchors_[i].copy_(before);
  }
  is_whole_ = whole;
}

void LocalSteps::start_from_weights() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < anchors_.size(); ++i) anchors_[i].copy_(flat_values(trained_[i]));
  buffers_.emplace(module_, group_);
  for (Window& window : windows_) window = {};
  done_ = 0;
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

/// Rank 0 saves weights and outer momentum, which are the same on all ranks; each rank saves its own optimizer state under its own name.
std::vector<FlatPiece> LocalSteps::pieces(bool saving) {
  const int rank = group_.rank();
  const bool keeps_shared = !saving || rank == 0;
  std::vector<FlatPiece> pieces;
  show(/*whole=*/true);
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
    const std::string name = has_fragments() ? concat("compress/change-", changes.fragment, "/") : "compress/change/";
    for (const auto& [slot, tensor] : changes.compressor->state()) {
      const at::Tensor flat = tensor.view({-1});
      pieces.push_back({name + slot, flat, {group_.size(), flat.numel()}, rank * flat.numel()});
    }
  }
  if (!has_fragments()) return pieces;
  for (size_t i = 0; i < anchors_.size(); ++i)
    pieces.push_back({name_of_own_weights(rank, trained_[i].name), anchors_[i], trained_[i].tensor.sizes().vec(), 0});
  write_windows(saving);
  pieces.push_back({name_of_round(rank, static_cast<int>(windows_.size())), saved_windows_.view({-1}), saved_windows_.sizes().vec(), 0});
  return pieces;
}

/// Before loading: impossible values, to see whether the checkpoint has any.
void LocalSteps::write_windows(bool saving) {
  auto* const numbers = saved_windows_.mutable_data_ptr<double>();
  for (size_t i = 0; i < windows_.size(); ++i) {
    numbers[2 * i] = saving ? static_cast<double>(windows_[i].mine) : -1;
    numbers[2 * i + 1] = saving ? static_cast<double>(windows_[i].all) : -1;
  }
}

void LocalSteps::loaded() {
  inner_.loaded();
  const double* const numbers = has_fragments() ? saved_windows_.const_data_ptr<double>() : nullptr;
  if (numbers && *numbers >= 0) {  // The worker's own weights were loaded too.
    for (size_t i = 0; i < windows_.size(); ++i)
      windows_[i] = {static_cast<int64_t>(numbers[2 * i]), static_cast<int64_t>(numbers[2 * i + 1])};
    buffers_.emplace(module_, group_);
  } else {
    start_from_weights();
  }
  group_.barrier();
}

}  // namespace cohort
