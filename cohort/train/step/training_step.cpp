// A training step:
//
//   1. forward and backward of each micro-batch: through the pipeline, one after the other, or for all ranks of another layout; backward()
//      starts the exchange of gradients bucket by bucket
//   2. the exchange ends; loss and stop requests have travelled with it, so that all ranks have the same ones without a message
//   3. a loss that is not finite is an error on all ranks
//   4. the update: scaled back, clipped, skipped after an fp16 overflow
//
// With local steps (sync=local:H, diloco:H) 2 and 3 are done in every H-th step only. Messages are those of the strategy.
#include "cohort/train/step/training_step.h"

#include <ATen/core/Generator.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/base/text/json.h"
#include "cohort/job/specs/small_specs.h"
#include "cohort/job/specs/sync_mode.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/models/graph/model_errors.h"
#include "cohort/parallel/strategy/data_parallel.h"
#include "cohort/tensor/collective_ops.h"
#include "cohort/tensor/shard_graph.h"
#include "cohort/world/stop.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;

enum Control { kLoss, kStop };

LossScaler scaler_for(const Job& job) {
  if (!needs_loss_scale(job.precision)) return LossScaler::none();
  if (job.config.loss_scale > 0) return LossScaler({.initial = job.config.loss_scale, .dynamic = false});
  return LossScaler();
}

void sleep_seconds(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

}  // namespace

TrainingStep::TrainingStep(const Job& job, const DataShape& shape, LayerGraph& model, Strategy& strategy, ModelPart& part,
                           TrainingStepOptions options)
    : job_(job),
      config_(job.config),
      shape_(shape),
      model_(model),
      strategy_(strategy),
      part_(part),
      options_(std::move(options)),
      scaler_(scaler_for(job)) {
  const SyncMode& sync = job.layout.sync;
  steps_between_exchanges_ = steps_between_exchanges(sync);
  if (is_local(sync)) round_.emplace();
  if (options_.sequential || part_.pipeline()) strategy_.hold_gradients();
}

/// The update applies the mean gradient of these samples: those of all ranks, or with local steps this rank's own.
int64_t TrainingStep::samples_of_update(const LoadedBatch& batch) const {
  return round_ ? batch.num_local_samples() : batch.global_samples;
}

TrainingStep::Rows TrainingStep::rows_of(const BatchTensors& whole, LoadedBatch& loaded, const Share& piece, int64_t offset) const {
  const int64_t count = piece.size();
  Rows rows{{whole.input.narrow(0, offset, count), whole.target.narrow(0, offset, count),
             static_cast<double>(count) / static_cast<double>(samples_of_update(loaded)), context_of(piece, loaded.step)},
            std::span(loaded.samples).subspan(static_cast<size_t>(offset), static_cast<size_t>(count)),
            {}};
  const int64_t scores = loaded.answers.empty() ? 0 : std::ssize(loaded.answers) / loaded.num_local_samples();
  if (scores > 0) rows.answers = at::from_blob(loaded.answers.data() + offset * scores, {count, scores});
  return rows;
}

LossRules TrainingStep::rules_for(const Rows& rows) const {
  LossRules rules = loss_rules(config_, shape_);
  const bool divided = part_.sharded().logits_divided;
  const auto whole = [this, divided](const at::Tensor& logits) {
    return divided ? gather_from_ranks(logits, logits.dim() - 1, part_.tensor()) : logits;
  };
  if (options_.loss) {
    rules.mean = options_.loss;
  } else if (divided && model_.loss()) {
    // The model's own loss knows nothing of ranks: each of them computes it of the whole output.
    rules.mean = [this, whole](const at::Tensor& logits, const at::Tensor& target) { return mean_loss(model_, whole(logits), target); };
  } else if (divided) {
    rules.mean = [this](const at::Tensor& logits, const at::Tensor& target) {
      return divided_cross_entropy(logits, target, part_.tensor());
    };
  }
  if (options_.teacher)
    rules.add = [this, whole, &rows](const at::Tensor& mean, const at::Tensor& logits) {
      return options_.teacher->add_to(mean, whole(logits), rows.samples, rows.of_batch.input, rows.answers);
    };
  return rules;
}

double TrainingStep::loss_factor(bool /*is_last*/) const { return scaler_.scale(); }

double TrainingStep::effective_learning_rate(int64_t number) const { return job_.learning_rate.at(number, options_.total_steps); }

at::Tensor TrainingStep::start_of_backward(const at::Tensor& loss, bool is_last) const {
  const double factor = loss_factor(is_last);
  return factor == 1 ? loss : loss * factor;
}

StepContext TrainingStep::context_of(const Share& piece, int64_t number) const { return {config_.seed, number, piece.begin}; }

/// Each micro-step is one run of the pipeline's schedule.
void TrainingStep::run_pipeline(LoadedBatch& loaded) {
  PipelineRunner& pipeline = *part_.pipeline();
  BatchTensors whole = as_tensors(loaded.batch, shape_);
  const std::vector<Share>& pieces = loaded.pieces;
  std::vector<int64_t> offsets;
  int64_t offset = 0, own_samples = 0;
  for (const Share& piece : pieces) {
    offsets.push_back(offset);
    offset += piece.size();
  }
  double loss_sum = 0, waited = 0;
  size_t last = pieces.size();
  for (size_t piece = 0; piece < pieces.size(); ++piece)
    if (pieces[piece].size() > 0) last = piece;
  const size_t round_size = static_cast<size_t>(options_.microbatches);
  for (size_t first = 0; first < pieces.size(); first += round_size) {
    std::vector<size_t> round;
    for (size_t piece = first; piece < std::min(pieces.size(), first + round_size); ++piece)
      if (pieces[piece].size() > 0 || options_.empty_forward) round.push_back(piece);
    if (round.empty()) continue;
    const int num_micro_batches = static_cast<int>(round.size());
    const auto rows_of_round = [&](int k) {
      const size_t piece = round[static_cast<size_t>(k)];
      return rows_of(whole, loaded, pieces[piece], offsets[piece]);
    };
    PipelineWork work;
    work.input = [&](int k) { return rows_of_round(k).of_batch.input; };
    work.loss = [&](int k, const at::Tensor& output) {
      const Rows rows = rows_of_round(k);
      const at::Tensor loss = loss_of(model_, output, rows.of_batch.target, rows.of_batch.weight, rules_for(rows));
      loss_sum += loss.item<double>();
      return start_of_backward(loss, round[static_cast<size_t>(k)] == last);
    };
    work.around_forward = [&](int k, const std::function<void()>& forward) {
      const StepContextScope context(context_of(pieces[round[static_cast<size_t>(k)]], loaded.step));
      const AutocastScope autocast(job_.precision, options_.device.type());
      const auto began = Clock::now();
      forward();
      // The delay is here so that other stages wait as for a slow stage; a backward takes about twice a forward.
      if (options_.slow_factor > 1) sleep_seconds((options_.slow_factor - 1) * 3 * seconds_since(began));
    };
    pipeline.record(options_.trace ? options_.trace->actions() : nullptr);
    pipeline.step(num_micro_batches, work);
    pipeline.record(nullptr);
    waited += pipeline.statistics().waited_seconds;
    for (int k = 0; k < num_micro_batches; ++k)
      if (pipeline.runs(pipeline.own_stages().front(), k, num_micro_batches)) own_samples += pieces[round[static_cast<size_t>(k)]].size();
  }
  pipeline_waited_seconds_ = waited;
  strategy_.set_buffer_share(static_cast<double>(own_samples) / static_cast<double>(loaded.global_samples));
  strategy_.set_control(kLoss, static_cast<float>(loss_sum));
  strategy_.exchange_without_backward();
}

/// Runs the micro-batches of all ranks in rank order, each with the gradients and buffers that its rank would have.
void TrainingStep::run_sequentially(LoadedBatch& loaded) {
  BatchTensors whole = as_tensors(loaded.batch, shape_);
  double loss_sum = 0;
  options_.sequential->step(loaded, [&](const Share& piece, int64_t offset) {
    const Rows rows = rows_of(whole, loaded, piece, offset);
    loss_sum += forward_backward(
        model_, rows.of_batch, rules_for(rows),
        {job_.precision, options_.device.type(), [&](const at::Tensor& loss, double) { return start_of_backward(loss, false); }});
  });
  strategy_.set_control(kLoss, static_cast<float>(loss_sum));
  strategy_.exchange_without_backward();
}

void TrainingStep::run_pieces(LoadedBatch& loaded) {
  const std::vector<Share>& pieces = loaded.pieces;
  const auto runs = [&](size_t piece) { return pieces[piece].size() > 0 || options_.empty_forward; };
  size_t last = pieces.size();
  for (size_t piece = 0; piece < pieces.size(); ++piece)
    if (runs(piece)) last = piece;
  strategy_.set_control(kLoss, 0);
  if (last == pieces.size()) return strategy_.exchange_without_backward();

  BatchTensors whole = as_tensors(loaded.batch, shape_);
  whole.input = whole.input.to(options_.device);
  whole.target = whole.target.to(options_.device);
  double loss_sum = 0;
  int64_t offset = 0;
  for (size_t piece = 0; piece < pieces.size(); ++piece) {
    if (!runs(piece)) continue;
    const Rows rows = rows_of(whole, loaded, pieces[piece], offset);
    offset += pieces[piece].size();
    const double begin = steady_seconds();
    double forward_end = 0;
    const auto before_backward = [&](const at::Tensor& loss, double value) {
      loss_sum += value;
      forward_end = steady_seconds();
      const at::Tensor start = start_of_backward(loss, piece == last);
      strategy_.set_sync(piece == last);
      strategy_.set_control(kLoss, static_cast<float>(loss_sum));
      if (options_.noise) options_.noise->begin_piece(pieces[piece].size());
      return start;
    };
    forward_backward(model_, rows.of_batch, rules_for(rows), {job_.precision, options_.device.type(), before_backward});
    if (!options_.trace) continue;
    options_.trace->span("forward", begin, forward_end);
    options_.trace->span("backward", forward_end, steady_seconds());
  }
}

/// Makes loss and stop request the same on all ranks of the job; does nothing between exchanges.
void TrainingStep::agree(StepResult& out, const LoadedBatch& batch, int64_t number) {
  if (round_) {
    round_->add_loss(strategy_.control_sum(kLoss), batch.num_local_samples(), batch.global_samples);
    if (!exchanges_after(number)) return;
    const ModelPart::Agreed agreed = part_.agree_replicas(round_->loss_sum(), strategy_.control_sum(kStop) > 0);
    out.metrics.loss = agreed.loss / static_cast<double>(round_->all_samples());
    out.stop = agreed.stop;
    return;
  }
  const ModelPart::Agreed agreed = part_.agree(strategy_.control_sum(kLoss), strategy_.control_sum(kStop) > 0);
  out.metrics.loss = agreed.loss;
  out.stop = agreed.stop;
}

void TrainingStep::check_finite(const std::string& which, double loss, int64_t number, LoadedBatch* batch) const {
  if (std::isfinite(loss)) return;
  // Layers that exchange with other ranks cannot be run again by one rank alone, and a GPU's samples are not in host memory.
  at::Tensor input;
  if (batch && batch->num_local_samples() > 0 && part_.is_whole() && !options_.sequential && !options_.empty_forward &&
      options_.device.is_cpu())
    input = as_tensors(batch->batch, shape_).input;
  const AutocastScope autocast(job_.precision, options_.device.type());
  std::string others = name_settings("), --warmup-steps or --clip-norm");
  if (job_.precision == Precision::kFp16) others += name_settings(", or --precision bf16, which has the range of fp32");
  const std::string where = job_.layout.zero == 3 ? "" : first_not_finite(model_, input);  // zero=3 has no weights here between steps.
  fail_not_finite(model_, which, loss, number, job_.learning_rate.at(number, options_.total_steps), others, where);
}

StepResult TrainingStep::run(int64_t number, LoadedBatch& batch) {
  try {
    return run_step(number, batch);
  } catch (const c10::Error& error) {
    // Layers and the loss report their own misfits, so this one is from backward or from the update.
    if (!is_mismatch_error(error)) throw;
    const std::string in_place = inplace_advice(error);
    fail(in_place.empty() ? ErrorCode::kFailed : ErrorCode::kBadInput, model_.title(), ": step ", number + 1,
         " failed after the loss, in backward or in the update; ",
         in_place.empty() ? "look at what its layers and its loss do in backward" : in_place, " (", quote(error), ")");
  } catch (const Error& error) {
    const std::string groups = part_.describe_groups();
    if (groups.empty() || error.code() != ErrorCode::kEnvironment) throw;
    throw Error(error.code(), concat(error.what(), " (job rank ", part_.rank(), "; a group numbers its ranks from 0: ", groups, ")"));
  }
}

StepResult TrainingStep::run_step(int64_t number, LoadedBatch& batch) {
  StepResult out;
  StepRecord& m = out.metrics;
  const auto start = Clock::now();
  // A user's model may draw from LibTorch's generator. Seeding it by (seed, step, stream) makes a resumed run draw the same numbers, and
  // tensor-parallel ranks draw equal ones.
  torch::manual_seed(random_bits(config_.seed, number, part_.random_stream()));
  const double begin = steady_seconds();
  if (options_.trace) options_.trace->begin_step(number);
  strategy_.zero_grad();
  strategy_.set_samples(batch.num_local_samples(), batch.global_samples);
  strategy_.set_control(kStop, stop_requested() ? 1 : 0);
  strategy_.set_gradient_factor(scaler_.gradient_factor());
  if (options_.noise) options_.noise->begin_step(number, batch.global_samples, scaler_.gradient_factor());
  if (part_.pipeline()) run_pipeline(batch);
  else if (options_.sequential) run_sequentially(batch);
  else run_pieces(batch);
  // Otherwise pending GPU work would count as exchange, and --shares auto would give this rank too many samples.
  if (const c10::Device& device = options_.device; !device.is_cpu())
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  if (options_.slow_factor > 1 && !part_.pipeline()) sleep_seconds((options_.slow_factor - 1) * seconds_since(start));
  const double backward_end = steady_seconds();
  strategy_.finish_backward();
  const double exchange_end = steady_seconds();
  m.learning_rate = effective_learning_rate(number);
  agree(out, batch, number);
  if (exchanges_after(number))
    check_finite(steps_between_exchanges_ > 1 ? "the mean loss since the last exchange" : "the loss", m.loss, number, &batch);
  const double update_begin = steady_seconds();
  if (options_.pruner) options_.pruner->begin_update(number);
  const StepOutcome outcome =
      strategy_.step({.learning_rate = m.learning_rate,
                      .clip_norm = options_.noise ? options_.noise->clip_norm(config_.clip_norm) : config_.clip_norm,
                      .check_finite = needs_loss_scale(job_.precision),
                      .add_other_parts = part_.add_other_parts(),
                      .exchange = exchanges_after(number)});
  if (options_.pruner) options_.pruner->end_update();
  if (options_.noise) out.noise = options_.noise->end_step(outcome);
  scaler_.update(outcome.skipped);
  out.skipped = outcome.skipped;
  const double seconds = seconds_since(start), end = steady_seconds();
  if (config_.clip_norm > 0) m.gradient_norm = outcome.gradient_norm;
  m.step = number + 1;
  m.data_seconds = batch.waited_seconds;
  m.exchange_seconds = (part_.mesh().num_ranks() > 1 ? strategy_.statistics().exposed_seconds : 0) + pipeline_waited_seconds_;
  if (round_) m.exchange_seconds += update_begin - exchange_end;  // The first rank at the exchange waits in agree().
  m.optimizer_seconds = outcome.update_seconds;
  m.compute_seconds = seconds - m.exchange_seconds - m.optimizer_seconds;
  m.step_seconds = m.data_seconds + seconds;
  m.samples_per_second = static_cast<double>(batch.global_samples) / m.step_seconds;
  if (options_.trace) {
    options_.trace->span("data", begin - m.data_seconds, begin);
    options_.trace->span("exchange", backward_end, round_ ? update_begin : exchange_end);
    options_.trace->span("update", update_begin, std::min(end, update_begin + m.optimizer_seconds));
    options_.trace->span("exchange", update_begin + m.optimizer_seconds, end);
    options_.trace->end_step(m.step_seconds);
  }
  out.num_samples = batch.num_local_samples();
  if (round_) report_round(out, number);
  return out;
}

/// Replaces the metrics by the mean since the last exchange, in the step before the next one.
void TrainingStep::report_round(StepResult& out, int64_t number) {
  round_->add(out.metrics);
  out.num_steps = 0;
  if (!exchanges_after(number)) return;
  const double loss = out.metrics.loss;
  const LocalRound::Total total = round_->take();
  out.metrics = total.mean;
  out.metrics.loss = loss;
  out.num_steps = total.num_steps;
  out.num_samples = total.own_samples;
}

Json TrainingStep::state() const { return scaler_.state(); }
void TrainingStep::load(const Json& state) { scaler_.load(state); }

}  // namespace cohort
