#include "cohort/job/refusals.h"

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/job/specs/sync_mode.h"

namespace cohort {
namespace {

const char* axes_of(const Layout& layout) { return layout.pp > 1 && layout.tp > 1 ? "pp and tp" : layout.pp > 1 ? "pp" : "tp"; }

bool all_cpu(const Situation& s) { return s.devices().all_cpu(); }

bool trains_alone(const Situation& s) { return is_local(s.layout.sync); }
std::string sync_key(const Situation& s) { return concat("sync=", s.layout.sync); }
std::string sync_of(const Situation& s) { return "--layout: " + sync_key(s); }

bool is_virtual(const Situation& s) { return !s.config.virtual_time.empty(); }
bool is_served(const Situation& s) { return is_served(s.config, s.layout); }
bool pushes_gradients(const Situation& s) { return has_late_gradients(s.layout.sync); }
/// Compressions that leave out most of what they are given.
bool drops_most(const Situation& s) { return s.layout.compress.starts_with("topk") || s.layout.compress.starts_with("powersgd"); }
/// The first setting that workers do not have that do not wait for one another.
std::string not_asynchronous(const Situation& s) {
  const Config& c = s.config;
  const std::string& precision = s.layout.precision.empty() ? c.precision : s.layout.precision;
  const int64_t accumulate = std::max(c.accumulate, s.layout.accumulate);
  if (accumulate > 1) return concat("--accumulate ", accumulate);
  if (c.device != "cpu") return "--device " + c.device;
  if (precision == "fp16") return "--precision fp16";
  if (c.sync_batch_norm) return "--sync-batch-norm";
  if (c.noise_scale > 0) return concat("--noise-scale ", c.noise_scale);
  return "";
}
/// And under the virtual clock.
std::string not_virtual(const Situation& s) {
  const std::string found = not_asynchronous(s);
  if (!found.empty()) return found;
  if (s.config.memory_limit > 0) return concat("--memory-limit ", s.config.memory_limit);
  return s.config.inject.empty() ? "" : "--inject " + s.config.inject;
}

const std::string& shares_of(const Situation& s) { return s.layout.shares.empty() ? s.config.shares : s.layout.shares; }

std::string if_asked(bool asked, const std::string& found) { return asked ? found : ""; }
std::string setting(bool asked, const char* option, const std::string& value, const std::string& with) {
  return if_asked(asked, concat(name_settings(concat("--", option)), value.empty() ? "" : " ", value, " with ", with));
}

std::vector<Refusal> refusals_of_served() {
  return {
      {"`sync=async`, `stale`, `queue` and a quorum with `pp`, `tp` or `zero`",
       "each of their workers has a whole model: use dp alone, or sync=local:H, whose workers may be pipelines or tensor-parallel groups",
       [](const Situation& s) {
         const bool divides = s.layout.is_model_parallel() || s.layout.zero > 0;
         return if_asked(
             is_served(s) && divides,
             concat(sync_of(s), " with ", s.layout.is_model_parallel() ? std::string(axes_of(s.layout)) : concat("zero=", s.layout.zero)));
       }},
      {"`sync=async` and `stale` with `compress` `topk` or `powersgd`",
       "a push is applied when it comes, and most of it would wait for the worker's next one: use compress=fp16, bf16 or int8, or none",
       [](const Situation& s) {
         return if_asked(pushes_gradients(s) && drops_most(s), concat(sync_of(s), " with compress=", s.layout.compress));
       }},
      {"`sync=stale:0` with `compress`",
       "its bits are the same whoever computes a share, and what compression leaves out is a worker's own: use sync=step with compress, or "
       "stale:1",
       [](const Situation& s) {
         return if_asked(is_in_order(s.layout.sync) && s.layout.compress != "none" && !drops_most(s),
                         concat(sync_of(s), " with compress=", s.layout.compress));
       }},
      {"`sync=queue`, and `local` and `diloco` with a quorum, with `compress`",
       "whole models travel, and all that are trained on from one would have its errors: use sync=async, or sync=local:H or diloco:H "
       "without a quorum",
       [](const Situation& s) {
         const SyncMode& sync = s.layout.sync;
         const bool moves_models = sync.kind == SyncKind::kQueue || sync.quorum > 0;
         return if_asked(moves_models && s.layout.compress != "none", concat(sync_of(s), " with compress=", s.layout.compress));
       }},
      {"`sync=async`, `stale`, `queue` and a quorum with `--shares`", "a faster worker takes more work items by itself: leave it out",
       [](const Situation& s) { return setting(is_served(s) && shares_of(s) != "equal", "shares", shares_of(s), sync_key(s)); }},
      {"`sync=async`, `stale`, `queue` and a quorum with `--accumulate`, `--device`, `--precision fp16`, `--sync-batch-norm` or "
       "`--noise-scale`",
       "leave it out, or use sync=step",
       [](const Situation& s) {
         const std::string found = is_served(s) ? not_asynchronous(s) : "";
         return if_asked(!found.empty(), concat(name_settings(found), " with ", sync_key(s)));
       }},
  };
}

std::vector<Refusal> refusals_of_all() {
  return {
      {"`zero` 1 to 3 with `compress`", "use zero=0 with compression, or compress=none",
       [](const Situation& s) {
         return if_asked(s.layout.zero > 0 && s.layout.compress != "none",
                         concat("--layout: zero=", s.layout.zero, " with compress=", s.layout.compress));
       }},
      {"`compress` with `pp` or `tp`", "use compress=none, or dp alone",
       [](const Situation& s) {
         return if_asked(s.layout.is_model_parallel() && s.layout.compress != "none",
                         concat("--layout: compress=", s.layout.compress, " with ", axes_of(s.layout)));
       }},
      {"`order` with stages of different `dp`", "leave order out",
       [](const Situation& s) {
         return if_asked(!s.layout.is_even() && s.layout.order != "dp-pp-tp",
                         concat("--layout: order=", s.layout.order, " with stages of different dp"));
       }},
      {"`shares` with `pp` or `tp`",
       "use equal shares, or stages with more replicas in a layout file ({\"stages\": [{\"layers\": [...], \"dp\": 2}, ...]})",
       [](const Situation& s) {
         return setting(s.layout.is_model_parallel() && shares_of(s) != "equal", "shares", shares_of(s), axes_of(s.layout));
       }},
      {"`--device` other than `cpu` with `pp` or `tp`", "stages and divided layers exchange through the host's memory: use --device cpu",
       [](const Situation& s) {
         return setting(s.layout.is_model_parallel() && !all_cpu(s), "device", s.config.device, axes_of(s.layout));
       }},
      {"`--device` other than `cpu` with `compress`", "it works on gradients in the host's memory: use compress=none, or --device cpu",
       [](const Situation& s) {
         return setting(s.layout.compress != "none" && !all_cpu(s), "device", s.config.device, concat("compress=", s.layout.compress));
       }},
      {"`--backend nccl` where a rank has `--device cpu`",
       "it moves tensors that lie on GPUs: give every rank one (--device cuda), or use --backend auto",
       [](const Situation& s) {
         return setting(s.devices().any_cpu() && s.config.backend == "nccl", "backend", "nccl",
                        name_settings("--device ") + s.config.device);
       }},
      {"`--sync-batch-norm` with `tp`", "use norm=ghost, group or none, or dp and pp alone",
       [](const Situation& s) { return setting(s.config.sync_batch_norm && s.layout.tp > 1, "sync-batch-norm", "", "tp"); }},
      {"`--label-smoothing` with `tp`", "the loss over divided classes is not smoothed: use dp and pp alone",
       [](const Situation& s) {
         return setting(s.config.label_smoothing > 0 && s.layout.tp > 1, "label-smoothing", concat(s.config.label_smoothing), "tp");
       }},
      {"`--noise-scale` with `pp` or `tp`",
       "no rank has the whole gradient of a smaller batch: measure the same model and batch with dp alone, or in one process with "
       "--accumulate 2 or more; the noise scale does not depend on the layout",
       [](const Situation& s) {
         return setting(s.config.noise_scale > 0 && s.layout.is_model_parallel(), "noise-scale", concat(s.config.noise_scale),
                        axes_of(s.layout));
       }},
      {"`--noise-scale` with `--sync-batch-norm`",
       "the gradient of a rank then depends on the samples of all: use another norm (norm=ghost, group, none), or leave --sync-batch-norm "
       "out",
       [](const Situation& s) {
         return setting(s.config.noise_scale > 0 && s.config.sync_batch_norm, "noise-scale", concat(s.config.noise_scale),
                        name_settings("--sync-batch-norm"));
       }},
  };
}

bool prunes_weights(const Situation& s) { return !s.config.prune.empty(); }

std::vector<Refusal> refusals_of_pruning() {
  return {
      {"`--prune` with `tp`", "the smallest weights are sought in whole rows, and tp divides them: use dp, zero=1 to 3 or pp",
       [](const Situation& s) { return setting(prunes_weights(s) && s.layout.tp > 1, "prune", s.config.prune, "tp"); }},
      {"`--prune` with another `sync` than `step`", "workers whose weights differ would prune different ones: use sync=step",
       [](const Situation& s) { return setting(prunes_weights(s) && !is_step(s.layout.sync), "prune", s.config.prune, sync_key(s)); }},
      {"`--prune` with `--virtual`", "its workers have no steps of their own to prune in: leave it out",
       [](const Situation& s) { return setting(prunes_weights(s) && is_virtual(s), "prune", s.config.prune, name_settings("--virtual")); }},
  };
}

bool rounds_weights(const Situation& s) { return !s.config.quantize_aware.empty(); }

std::vector<Refusal> refusals_of_rounding() {
  return {
      {"`--quantize-aware` with `tp`", "tp divides the rows and samples that have one scale: use dp, zero=1 to 3 or pp",
       [](const Situation& s) { return setting(rounds_weights(s) && s.layout.tp > 1, "quantize-aware", s.config.quantize_aware, "tp"); }},
      {"`--quantize-aware` with another `--precision` than `fp32`",
       "half precision would round the rounded numbers once more, to others than the file has: use --precision fp32",
       [](const Situation& s) {
         const std::string precision = s.layout.precision.empty() ? s.config.precision : s.layout.precision;
         return setting(rounds_weights(s) && precision != "fp32", "quantize-aware", s.config.quantize_aware,
                        concat(name_settings("--precision "), precision));
       }},
  };
}

bool has_hints(const Situation& s) { return !s.config.hint.empty(); }

std::vector<Refusal> refusals_of_teacher() {
  return {
      {"`--hint` with `pp`, `tp` or `recompute`",
       "the loss needs what whole layers gave, where it is computed: use dp, or zero=1 to 3, without recompute",
       [](const Situation& s) {
         const std::string with = s.layout.is_model_parallel() ? axes_of(s.layout) : s.layout.recompute != "none" ? "recompute" : "";
         return setting(has_hints(s) && !with.empty(), "hint", s.config.hint, with);
       }},
      {"`--hint` with `sync=async`, `stale`, `queue`, a quorum or `--virtual`",
       "their workers learn from kept scores: use sync=step, local:H or diloco:H",
       [](const Situation& s) {
         return setting(has_hints(s) && (is_served(s) || is_virtual(s)), "hint", s.config.hint,
                        is_virtual(s) ? name_settings("--virtual") : sync_key(s));
       }},
      {"`--teacher-answers beside` with `sync=async`, `stale`, `queue`, a quorum or `--virtual`",
       "who takes a share of a step is only known when it is taken: use cached, or live",
       [](const Situation& s) {
         return setting(s.config.teacher_answers == "beside" && (is_served(s) || is_virtual(s)), "teacher-answers", "beside",
                        is_virtual(s) ? name_settings("--virtual") : sync_key(s));
       }},
  };
}

std::vector<Refusal> refusals_of_local_steps() {
  return {
      {"`sync=local` and `diloco` with `zero` 1 to 3",
       "it divides over the workers what they exchange in every step: use zero=0 (with pp or tp where the model does not fit), or "
       "sync=step",
       [](const Situation& s) { return if_asked(trains_alone(s) && s.layout.zero > 0, concat(sync_of(s), " with zero=", s.layout.zero)); }},
      {"`sync=local` and `diloco` with stages of different `dp`",
       "their replicas take the micro-batches of one pipeline in turn: give all stages the same dp, or use sync=step",
       [](const Situation& s) { return if_asked(trains_alone(s) && !s.layout.is_even(), sync_of(s) + " with stages of different dp"); }},
      {"`sync=local` and `diloco` with `compress` `topk` or `powersgd`",
       "most of what workers learnt would wait for another exchange: use compress=fp16, bf16 or int8, or none",
       [](const Situation& s) {
         return if_asked(trains_alone(s) && drops_most(s), concat(sync_of(s), " with compress=", s.layout.compress));
       }},
      {"`sync=local` and `diloco` with `--shares auto`",
       "workers would have to agree on their speeds between exchanges: give numbers, as --shares 3:1",
       [](const Situation& s) { return setting(trains_alone(s) && shares_of(s) == "auto", "shares", "auto", sync_key(s)); }},
      {"`sync=local` and `diloco` with `--precision fp16`",
       "each worker would skip steps of its own: use --precision bf16, which needs no loss scale",
       [](const Situation& s) {
         const std::string precision = s.layout.precision.empty() ? s.config.precision : s.layout.precision;
         return setting(trains_alone(s) && precision == "fp16", "precision", precision, sync_key(s));
       }},
      {"`sync=local` and `diloco` with `--sync-batch-norm`",
       "it exchanges in every layer of every step: use norm=ghost, group or none; running statistics are averaged at each exchange",
       [](const Situation& s) { return setting(trains_alone(s) && s.config.sync_batch_norm, "sync-batch-norm", "", sync_key(s)); }},
      {"`sync=local` and `diloco` with `--noise-scale`",
       "it compares gradients of workers that have the same weights: measure it with sync=step",
       [](const Situation& s) {
         return setting(trains_alone(s) && s.config.noise_scale > 0, "noise-scale", concat(s.config.noise_scale), sync_key(s));
       }},
      {"`--virtual` with two ranks or more",
       "its workers are made up by one process: give workers=N in --virtual, and neither --workers nor dp, pp or tp",
       [](const Situation& s) {
         return if_asked(is_virtual(s) && s.layout.num_ranks() > 1, concat("--virtual with ", s.layout.num_ranks(), " ranks"));
       }},
      {"`--virtual` with `--accumulate`, `--device`, `--precision fp16`, `--sync-batch-norm`, `--noise-scale`, `--memory-limit` or "
       "`--inject`",
       "leave it out; slow=, pauses= and mtbf= in --virtual make workers slow, stand still and die",
       [](const Situation& s) {
         const std::string found = is_virtual(s) ? not_virtual(s) : "";
         return if_asked(!found.empty(), name_settings(found) + name_settings(" with --virtual"));
       }},
      {"`sync=local:H:F` and `diloco:H:F` with `pp` or `tp`",
       "ranks with copies of one weight would exchange it after different steps: use dp alone, or leave F out",
       [](const Situation& s) {
         const bool in_turn = s.layout.sync.fragments > 1;
         return if_asked(in_turn && s.layout.is_model_parallel(), concat(sync_of(s), " with ", axes_of(s.layout)));
       }},
  };
}

bool batch_grows(const Situation& s) { return !s.config.batch_schedule.empty(); }

std::vector<Refusal> refusals_of_growing_batches() {
  return {
      {"`--batch-schedule` with `sync=async`, `stale`, `queue`, a quorum or `--virtual`",
       "how late a push may be is counted in batches of one size: use sync=step, local:H or diloco:H, or --schedule-lr linear",
       [](const Situation& s) {
         return setting(batch_grows(s) && (is_served(s) || is_virtual(s)), "batch-schedule", s.config.batch_schedule,
                        is_virtual(s) ? name_settings("--virtual") : sync_key(s));
       }},
  };
}

}  // namespace

const std::vector<Refusal>& refusals() {
  static const std::vector<Refusal> kTable = [] {
    std::vector<Refusal> all = refusals_of_served();
    for (const auto& more : {refusals_of_all(), refusals_of_local_steps(), refusals_of_pruning(), refusals_of_rounding(),
                             refusals_of_teacher(), refusals_of_growing_batches()})
      all.insert(all.end(), more.begin(), more.end());
    return all;
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
