#include "cohort/job/refusals.h"

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/job/specs/sync_mode.h"

namespace cohort {
namespace {
namespace asked {

// What a situation asks for, with its value; "" where it does not. A key of --layout stands without the option's name.

std::string if_asked(bool asked, const std::string& text) { return asked ? text : ""; }
std::string option(bool asked, const char* name, const std::string& value) {
  return if_asked(asked, concat("--", name, value.empty() ? "" : " ", value));
}

const std::string& precision_of(const Situation& s) { return s.layout.precision.empty() ? s.config.precision : s.layout.precision; }
const std::string& shares_of(const Situation& s) { return s.layout.shares.empty() ? s.config.shares : s.layout.shares; }

std::string sync(const Situation& s) { return concat("sync=", s.layout.sync); }
std::string served(const Situation& s) { return if_asked(is_served(s.config, s.layout), sync(s)); }
std::string virtual_time(const Situation& s) { return option(!s.config.virtual_time.empty(), "virtual", ""); }
std::string served_or_virtual(const Situation& s) { return served(s) + virtual_time(s); }
std::string local(const Situation& s) { return if_asked(is_local(s.layout.sync), sync(s)); }
std::string late_gradients(const Situation& s) { return if_asked(has_late_gradients(s.layout.sync), sync(s)); }
std::string in_order(const Situation& s) { return if_asked(is_in_order(s.layout.sync), sync(s)); }
std::string whole_models(const Situation& s) {
  return if_asked(s.layout.sync.kind == SyncKind::kQueue || s.layout.sync.quorum > 0, sync(s));
}
std::string fragments(const Situation& s) { return if_asked(s.layout.sync.fragments > 1, sync(s)); }
std::string not_step(const Situation& s) { return if_asked(!is_step(s.layout.sync), sync(s)); }

std::string tp(const Situation& s) { return if_asked(s.layout.tp > 1, "tp"); }
std::string model_parallel(const Situation& s) {
  return if_asked(s.layout.is_model_parallel(), s.layout.tp == 1 ? "pp" : s.layout.pp == 1 ? "tp" : "pp and tp");
}
std::string zero(const Situation& s) { return if_asked(s.layout.zero > 0, concat("zero=", s.layout.zero)); }
std::string divided_model(const Situation& s) { return s.layout.is_model_parallel() ? model_parallel(s) : zero(s); }
std::string divided_or_recomputed(const Situation& s) {
  return s.layout.is_model_parallel() ? model_parallel(s) : if_asked(s.layout.recompute != "none", "recompute");
}
std::string uneven(const Situation& s) { return if_asked(!s.layout.is_even(), "stages of different dp"); }
std::string order(const Situation& s) { return if_asked(s.layout.order != Layout().order, "order=" + s.layout.order); }

bool is_sparse(const Layout& layout) { return layout.compress.starts_with("topk") || layout.compress.starts_with("powersgd"); }
std::string compression(const Situation& s) { return if_asked(s.layout.compress != "none", "compress=" + s.layout.compress); }
std::string sparse_compression(const Situation& s) { return if_asked(is_sparse(s.layout), compression(s)); }
std::string dense_compression(const Situation& s) { return if_asked(!is_sparse(s.layout), compression(s)); }

std::string shares(const Situation& s) { return option(shares_of(s) != "equal", "shares", shares_of(s)); }
std::string measured_shares(const Situation& s) { return option(shares_of(s) == "auto", "shares", "auto"); }
std::string gpu(const Situation& s) { return option(!s.devices().all_cpu(), "device", s.config.device); }
std::string any_cpu(const Situation& s) { return option(s.devices().any_cpu(), "device", s.config.device); }
std::string nccl(const Situation& s) { return option(s.config.backend == "nccl", "backend", "nccl"); }
std::string synced_norms(const Situation& s) { return option(s.config.sync_batch_norm, "sync-batch-norm", ""); }
std::string label_smoothing(const Situation& s) {
  return option(s.config.label_smoothing > 0, "label-smoothing", concat(s.config.label_smoothing));
}
std::string noise_scale(const Situation& s) { return option(s.config.noise_scale > 0, "noise-scale", concat(s.config.noise_scale)); }
std::string fp16(const Situation& s) { return option(precision_of(s) == "fp16", "precision", "fp16"); }
std::string half_precision(const Situation& s) { return option(precision_of(s) != "fp32", "precision", precision_of(s)); }
std::string pruning(const Situation& s) { return option(!s.config.prune.empty(), "prune", s.config.prune); }
std::string quantize_aware(const Situation& s) {
  return option(!s.config.quantize_aware.empty(), "quantize-aware", s.config.quantize_aware);
}
std::string hint(const Situation& s) { return option(!s.config.hint.empty(), "hint", s.config.hint); }
std::string answers_beside(const Situation& s) { return option(s.config.teacher_answers == "beside", "teacher-answers", "beside"); }
std::string batch_schedule(const Situation& s) {
  return option(!s.config.batch_schedule.empty(), "batch-schedule", s.config.batch_schedule);
}
std::string several_ranks(const Situation& s) { return if_asked(s.layout.num_ranks() > 1, concat(s.layout.num_ranks(), " ranks")); }

/// The first setting that workers which do not wait for one another cannot have.
std::string not_asynchronous(const Situation& s) {
  const int64_t accumulate = std::max(s.config.accumulate, s.layout.accumulate);
  for (const std::string& found : {option(accumulate > 1, "accumulate", concat(accumulate)),
                                   option(s.config.device != "cpu", "device", s.config.device), fp16(s), synced_norms(s), noise_scale(s)})
    if (!found.empty()) return found;
  return "";
}
std::string not_virtual(const Situation& s) {
  for (const std::string& found : {not_asynchronous(s), option(s.config.memory_limit > 0, "memory-limit", concat(s.config.memory_limit)),
                                   option(!s.config.inject.empty(), "inject", s.config.inject)})
    if (!found.empty()) return found;
  return "";
}

}  // namespace asked

// In the order of docs/guide/layouts.md.
std::vector<Refusal> first_refusals() {
  using namespace asked;
  return {
      {"`sync=async`, `stale`, `queue` and a quorum with `pp`, `tp` or `zero`",
       "each of their workers has a whole model: use dp alone, or sync=local:H, whose workers may be pipelines or tensor-parallel groups",
       served, divided_model},
      {"`sync=async` and `stale` with `compress` `topk` or `powersgd`",
       "a push is applied when it comes, and most of it would wait for the worker's next one: use compress=fp16, bf16 or int8, or none",
       late_gradients, sparse_compression},
      {"`sync=stale:0` with `compress`",
       "its bits are the same whoever computes a share, and what compression leaves out is a worker's own: use sync=step with compress, or "
       "stale:1",
       in_order, dense_compression},
      {"`sync=queue`, and `local` and `diloco` with a quorum, with `compress`",
       "whole models travel, and all that are trained on from one would have its errors: use sync=async, or sync=local:H or diloco:H "
       "without a quorum",
       whole_models, compression},
      {"`sync=async`, `stale`, `queue` and a quorum with `--shares`", "a faster worker takes more work items by itself: leave it out",
       shares, served},
      {"`sync=async`, `stale`, `queue` and a quorum with `--accumulate`, `--device`, `--precision fp16`, `--sync-batch-norm` or "
       "`--noise-scale`",
       "leave it out, or use sync=step", not_asynchronous, served},
      {"`zero` 1 to 3 with `compress`", "use zero=0 with compression, or compress=none", zero, compression},
      {"`compress` with `pp` or `tp`", "use compress=none, or dp alone", compression, model_parallel},
      {"`order` with stages of different `dp`", "leave order out", order, uneven},
      {"`shares` with `pp` or `tp`",
       "use equal shares, or stages with more replicas in a layout file ({\"stages\": [{\"layers\": [...], \"dp\": 2}, ...]})", shares,
       model_parallel},
      {"`--device` other than `cpu` with `pp` or `tp`", "stages and divided layers exchange through the host's memory: use --device cpu",
       gpu, model_parallel},
      {"`--device` other than `cpu` with `compress`", "it works on gradients in the host's memory: use compress=none, or --device cpu", gpu,
       compression},
      {"`--backend nccl` where a rank has `--device cpu`",
       "it moves tensors that lie on GPUs: give every rank one (--device cuda), or use --backend auto", nccl, any_cpu},
      {"`--sync-batch-norm` with `tp`", "use norm=ghost, group or none, or dp and pp alone", synced_norms, tp},
      {"`--label-smoothing` with `tp`", "the loss over divided classes is not smoothed: use dp and pp alone", label_smoothing, tp},
      {"`--noise-scale` with `pp` or `tp`",
       "no rank has the whole gradient of a smaller batch: measure the same model and batch with dp alone, or in one process with "
       "--accumulate 2 or more; the noise scale does not depend on the layout",
       noise_scale, model_parallel},
      {"`--noise-scale` with `--sync-batch-norm`",
       "the gradient of a rank then depends on the samples of all: use another norm (norm=ghost, group, none), or leave --sync-batch-norm "
       "out",
       noise_scale, synced_norms}};
}

std::vector<Refusal> other_refusals() {
  using namespace asked;
  return {
      {"`sync=local` and `diloco` with `zero` 1 to 3",
       "it divides over the workers what they exchange in every step: use zero=0 (with pp or tp where the model does not fit), or "
       "sync=step",
       local, zero},
      {"`sync=local` and `diloco` with stages of different `dp`",
       "their replicas take the micro-batches of one pipeline in turn: give all stages the same dp, or use sync=step", local, uneven},
      {"`sync=local` and `diloco` with `compress` `topk` or `powersgd`",
       "most of what workers learnt would wait for another exchange: use compress=fp16, bf16 or int8, or none", local, sparse_compression},
      {"`sync=local` and `diloco` with `--shares auto`",
       "workers would have to agree on their speeds between exchanges: give numbers, as --shares 3:1", measured_shares, local},
      {"`sync=local` and `diloco` with `--precision fp16`",
       "each worker would skip steps of its own: use --precision bf16, which needs no loss scale", fp16, local},
      {"`sync=local` and `diloco` with `--sync-batch-norm`",
       "it exchanges in every layer of every step: use norm=ghost, group or none; running statistics are averaged at each exchange",
       synced_norms, local},
      {"`sync=local` and `diloco` with `--noise-scale`",
       "it compares gradients of workers that have the same weights: measure it with sync=step", noise_scale, local},
      {"`--virtual` with two ranks or more",
       "its workers are made up by one process: give workers=N in --virtual, and neither --workers nor dp, pp or tp", virtual_time,
       several_ranks},
      {"`--virtual` with `--accumulate`, `--device`, `--precision fp16`, `--sync-batch-norm`, `--noise-scale`, `--memory-limit` or "
       "`--inject`",
       "leave it out; slow=, pauses= and mtbf= in --virtual make workers slow, stand still and die", not_virtual, virtual_time},
      {"`sync=local:H:F` and `diloco:H:F` with `pp` or `tp`",
       "ranks with copies of one weight would exchange it after different steps: use dp alone, or leave F out", fragments, model_parallel},
      {"`--prune` with `tp`", "the smallest weights are sought in whole rows, and tp divides them: use dp, zero=1 to 3 or pp", pruning, tp},
      {"`--prune` with another `sync` than `step`", "workers whose weights differ would prune different ones: use sync=step", pruning,
       not_step},
      {"`--prune` with `--virtual`", "its workers have no steps of their own to prune in: leave it out", pruning, virtual_time},
      {"`--quantize-aware` with `tp`", "tp divides the rows and samples that have one scale: use dp, zero=1 to 3 or pp", quantize_aware,
       tp},
      {"`--quantize-aware` with another `--precision` than `fp32`",
       "half precision would round the rounded numbers once more, to others than the file has: use --precision fp32", quantize_aware,
       half_precision},
      {"`--hint` with `pp`, `tp` or `recompute`",
       "the loss needs what whole layers gave, where it is computed: use dp, or zero=1 to 3, without recompute", hint,
       divided_or_recomputed},
      {"`--hint` with `sync=async`, `stale`, `queue`, a quorum or `--virtual`",
       "their workers learn from kept scores: use sync=step, local:H or diloco:H", hint, served_or_virtual},
      {"`--teacher-answers beside` with `sync=async`, `stale`, `queue`, a quorum or `--virtual`",
       "who takes a share of a step is only known when it is taken: use cached, or live", answers_beside, served_or_virtual},
      {"`--batch-schedule` with `sync=async`, `stale`, `queue`, a quorum or `--virtual`",
       "how late a push may be is counted in batches of one size: use sync=step, local:H or diloco:H, or --schedule-lr linear",
       batch_schedule, served_or_virtual}};
}

}  // namespace

std::string Refusal::found(const Situation& situation) const {
  const std::string first = one(situation), second = first.empty() ? "" : other(situation);
  return second.empty() ? "" : concat(first.starts_with("--") ? "" : "--layout: ", first, " with ", second);
}

const std::vector<Refusal>& refusals() {
  static const std::vector<Refusal> kTable = [] {
    std::vector<Refusal> rows = first_refusals();
    for (Refusal& row : other_refusals()) rows.push_back(std::move(row));
    return rows;
  }();
  return kTable;
}

std::optional<std::string> refusal_of(const Situation& situation) {
  for (const Refusal& row : refusals())
    if (const std::string found = row.found(situation); !found.empty())
      return concat(name_settings(found), " is not supported; ", name_settings(row.instead));
  return std::nullopt;
}

std::optional<std::string> refusal_of(const Layout& layout) {
  static const Config kDefaults;
  return refusal_of({.config = kDefaults, .layout = layout, .num_ranks = layout.num_ranks()});
}

void check_refusals(const Situation& situation) {
  if (const auto sentence = refusal_of(situation)) throw Error(ErrorCode::kBadInput, *sentence);
}

}  // namespace cohort
