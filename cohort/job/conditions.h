#pragma once
// Conditions: when a setting or a key of --layout has an effect, what holds where it has none, and what to do. Internal to this room.

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/job/option_rules.h"

namespace cohort::conditions {

inline std::string value_of(const Situation& s, const char* setting) {
  return concat(name_settings(concat("--", setting)), " is ", plain_value(*find_setting(setting), s.config));
}
inline std::string data_now(const Situation& s) { return value_of(s, "data"); }
inline std::string optimizer_now(const Situation& s) { return value_of(s, "optimizer"); }
inline std::string sync_now(const Situation& s) { return concat("sync is ", s.layout.sync); }
inline std::string one_process(const Situation&) { return "there is one process"; }
inline std::string one_replica(const Situation& s) {
  return s.layout.is_model_parallel() ? "dp is 1: no two ranks have the same part of the model" : one_process(s);
}

inline bool has_ranks(const Situation& s) { return s.num_ranks > 1; }
inline bool has_replicas(const Situation& s) {
  const std::vector<int> degrees = s.layout.data_degrees();
  return std::any_of(degrees.begin(), degrees.end(), [](int degree) { return degree > 1; });
}
inline bool is_virtual(const Situation& s) { return !s.config.virtual_time.empty(); }
inline bool uses_server(const Situation& s) { return is_served(s.config, s.layout); }

inline bool is_text(const Situation& s) { return s.is_text.value_or(true); }
inline bool is_data(const Situation& s, std::initializer_list<const char*> names) {
  const std::string name = s.config.data.substr(0, s.config.data.find(':'));
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Ranks of one host that could share one copy of the weights.
inline bool could_share(const Situation& s) {
  const bool shares_memory = s.config.backend == "shm" || (s.config.backend == "auto" && s.one_host);
  return has_replicas(s) && s.layout.zero == 0 && is_step(s.layout.sync) && s.layout.compress == "none" && s.devices().all_cpu() &&
         shares_memory;
}
/// On several hosts `private` is what `auto` chooses, so it is not refused there.
inline bool chooses_weights(const Situation& s) {
  return could_share(s) || (s.config.backend == "auto" && !s.one_host && s.layout.zero == 0 && is_step(s.layout.sync));
}
inline std::string weights_now(const Situation& s) {
  if (!has_replicas(s)) return one_replica(s);
  if (s.layout.zero > 0) return concat("zero=", s.layout.zero, " divides them");
  if (!is_step(s.layout.sync)) return concat("with sync=", s.layout.sync, " each rank has its own already");
  if (s.layout.compress != "none") return concat("with compress=", s.layout.compress, " each rank has its own already");
  return s.devices().all_cpu() ? concat(value_of(s, "backend"), ": each rank has its own already") : value_of(s, "device");
}
inline std::string buckets_now(const Situation& s) {
  if (is_local(s.layout.sync)) return concat("with sync=", s.layout.sync, " no gradients are exchanged");
  if (uses_server(s)) return concat("with sync=", s.layout.sync, " gradients are sent whole");
  return has_replicas(s) ? "the ranks of this host have one copy of the weights, and no buckets" : one_replica(s);
}

/// The axes with more than one rank, as `order` has them.
inline std::string used_axes(const Layout& layout, const std::string& order) {
  std::string used;
  for (const std::string& axis : split(order, '-')) {
    const bool many = axis == "pp" ? layout.pp > 1 : axis == "tp" ? layout.tp > 1 : has_replicas({Config(), layout});
    if (many) used += " " + axis;
  }
  return used;
}

inline constexpr Condition kForText{"for text", is_text, data_now, "leave it out"};
inline constexpr Condition kForPictureFiles{
    "for pictures of files",
    [](const Situation& s) { return !s.is_text.value_or(false) && !is_data(s, {"synthetic", "csv", "npy", "safetensors"}); }, data_now,
    "write the size in synthetic:CxHxW"};
inline constexpr Condition kWithTestSet{"where the data have a test set",
                                        [](const Situation& s) { return !s.is_text.value_or(false) && !is_data(s, {"synthetic"}); },
                                        data_now, "leave it out"};
inline constexpr Condition kForManyFiles{"for --data folder, csv, npy and safetensors",
                                         [](const Situation& s) {
                                           return is_data(s, {"folder", "csv", "npy", "safetensors"}) ||
                                                  !s.is_text;  // Or a user's own kind.
                                         },
                                         data_now, "leave it out"};
inline constexpr Condition kForPictures{
    "for pictures", [](const Situation& s) { return !s.is_text.value_or(false) && !is_data(s, {"csv"}); }, data_now, "leave it out"};
inline constexpr Condition kForSamples{
    "for text, with --sample-bytes above 0", [](const Situation& s) { return is_text(s) && s.config.sample_bytes > 0; },
    [](const Situation& s) { return value_of(s, is_text(s) ? "sample-bytes" : "data"); }, "leave it out"};
inline constexpr Condition kWithTeacher{"with --teacher", [](const Situation& s) { return !s.config.teacher.empty(); },
                                        [](const Situation&) { return std::string("there is none"); }, "add --teacher RUN"};
inline constexpr Condition kWithHint{"with --hint", [](const Situation& s) { return !s.config.teacher.empty() && !s.config.hint.empty(); },
                                     [](const Situation&) { return std::string("no layers are compared"); }, "add --hint STUDENT:TEACHER"};
inline constexpr Condition kWithPruning{"with --prune", [](const Situation& s) { return !s.config.prune.empty(); },
                                        [](const Situation&) { return std::string("nothing is pruned"); }, "add --prune weight:0.9"};
inline constexpr Condition kWithCollectives{"on two ranks or more, but for sync=async, stale:K, queue and a quorum",
                                            [](const Situation& s) { return has_ranks(s) && !uses_server(s); },
                                            [](const Situation& s) {
                                              return uses_server(s) ? concat("with sync=", s.layout.sync, " ranks send messages to rank 0")
                                                                    : one_process(s);
                                            },
                                            "use --layout sync=step, local:H or diloco:H on two ranks or more"};
inline constexpr Condition kWithSharedWeights{
    "where two ranks or more of a host have the same part of the model: dp=2 or more, zero=0, sync=step, "
    "compress=none, --backend auto or shm",
    chooses_weights, weights_now, "take dp alone"};
inline constexpr Condition kWithRanks{"on two ranks or more", has_ranks, one_process, "add --workers N"};
inline constexpr Condition kWithDiloco{"with sync=diloco:H", [](const Situation& s) { return s.layout.sync.kind == SyncKind::kDiloco; },
                                       sync_now, "use --layout sync=diloco:H"};
inline constexpr Condition kWithLateGradients{
    "with sync=async and stale:K, K above 0",
    [](const Situation& s) { return has_late_gradients(s.layout.sync) && !is_in_order(s.layout.sync); }, sync_now,
    "use --layout sync=async"};
inline constexpr Condition kWithServer{
    "with sync=async, stale:K, queue and a quorum on real workers", uses_server,
    [](const Situation& s) { return is_virtual(s) ? name_settings("--virtual simulates its workers") : sync_now(s); },
    "use --layout sync=async, stale:K or queue without --virtual"};
inline constexpr Condition kWithBuckets{
    "where gradients travel in buckets: dp=2 or more, sync=step, with zero=1 to 3, compress, --weights private or a network's "
    "--backend",
    [](const Situation& s) {
      return has_replicas(s) && !is_local(s.layout.sync) && !uses_server(s) && (!could_share(s) || s.config.weights == "private");
    },
    buckets_now, "use sync=step with --weights private, or zero=1 to 3"};
inline constexpr Condition kWithMomentum{
    "with --optimizer momentum or nesterov",
    [](const Situation& s) { return s.config.optimizer == "momentum" || s.config.optimizer == "nesterov"; }, optimizer_now,
    "use --optimizer momentum (or nesterov)"};
inline constexpr Condition kWithAdam{"with --optimizer adam or adamw",
                                     [](const Situation& s) { return s.config.optimizer == "adam" || s.config.optimizer == "adamw"; },
                                     optimizer_now, "use --optimizer adam (or adamw)"};
inline constexpr Condition kWithDecay{"with --schedule-lr linear or cosine",
                                      [](const Situation& s) { return s.config.schedule_lr != "constant"; },
                                      [](const Situation& s) { return value_of(s, "schedule-lr"); }, "use --schedule-lr linear or cosine"};
inline constexpr Condition kWithSmoothing{"with --label-smoothing", [](const Situation& s) { return s.config.label_smoothing > 0; },
                                          [](const Situation&) { return std::string("no target is smoothed"); }, "use --label-smoothing X"};
inline constexpr Condition kWithFp16{"with --precision fp16", [](const Situation& s) { return s.config.precision == "fp16"; },
                                     [](const Situation& s) { return value_of(s, "precision"); }, "use --precision fp16"};
inline constexpr Condition kRemovingCheckpoints{
    "with --checkpoint-every 0 or N, or beside --resume",
    [](const Situation& s) { return s.config.checkpoint_every >= 0 || s.config.resume || s.config.resume_auto; },
    [](const Situation& s) { return value_of(s, "checkpoint-every") + ", so one is saved"; }, "use --checkpoint-every N"};
inline constexpr Condition kWithRun{"with --run", [](const Situation& s) { return !s.config.run.empty(); },
                                    [](const Situation&) { return std::string("no folder is named"); }, "add --run DIR"};
inline constexpr Condition kWithTwoBatchSizes{
    "on two ranks or more, or with --accumulate 2 or more", [](const Situation& s) { return s.num_ranks > 1 || s.config.accumulate > 1; },
    [](const Situation&) { return std::string("one worker without accumulation has gradients of one batch size"); },
    "add --workers N or --accumulate N"};

// Conditions of the keys of --layout.

inline bool has_stages(const Situation& s) { return s.layout.pp > 1; }
inline std::string no_stages(const Situation&) { return "it has no pipeline workers"; }
inline constexpr Condition kWithReplicas{"with dp=2 or more", has_replicas, one_replica, "add ranks (dp=2, --workers N)"};
inline constexpr Condition kWithStages{"with pp=2 or more", has_stages, no_stages, "add pp=N"};
inline constexpr Condition kWithMicroBatches{"with pp=2 or more", has_stages, no_stages,
                                             "use --accumulate N, which divides each rank's batch, or add pp=N"};
inline constexpr Condition kWithMemoryLimit{
    "as auto with --memory-limit, as all always",
    [](const Situation& s) { return s.layout.recompute != "auto" || s.config.memory_limit > 0; },
    [](const Situation&) { return std::string("there is no limit to keep, so nothing would recompute"); },
    "add --memory-limit BYTES, or use recompute=all"};
inline constexpr Condition kSendingGradients{"with dp=2 or more, and with sync=async and stale:K also with --virtual and --listen",
                                             [](const Situation& s) {
                                               return has_replicas(s) ||
                                                      s.layout.is_model_parallel() ||  // The latter is refused elsewhere.
                                                      (has_server(s.layout.sync) && (is_virtual(s) || !s.config.listen.empty()));
                                             },
                                             one_replica, "add --workers N"};
inline constexpr Condition kWithOwnCuts{
    "with pp=2 or more, where no file names the stages", [](const Situation& s) { return has_stages(s) && s.layout.stages.empty(); },
    [](const Situation& s) { return has_stages(s) ? "the layout's file names the stages" : no_stages(s); }, "add pp=N"};
inline constexpr Condition kMovingRanks{
    "where it moves an axis of two ranks or more",
    [](const Situation& s) { return used_axes(s.layout, s.layout.order) != used_axes(s.layout, Layout().order); },
    [](const Situation& s) {
      const std::string used = used_axes(s.layout, s.layout.order);
      return used.empty() ? one_process(s) : concat("the axes with more than one rank,", used, ", stand as without it");
    },
    "give other degrees"};
inline constexpr Condition kWithTensorParallel{"with tp=2 or more", [](const Situation& s) { return s.layout.tp > 1; },
                                               [](const Situation&) { return std::string("tp is 1"); }, "use tp=N as well"};

}  // namespace cohort::conditions
