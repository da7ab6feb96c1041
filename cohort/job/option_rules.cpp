// The tables of option_rules.h. A new setting needs a row: tests compare names with settings(), and train/option_effects_test.cpp with what
// each of them does.
#include "cohort/job/option_rules.h"

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/base/text/toml_text.h"
#include "cohort/job/specs/sync_mode.h"

namespace cohort {
namespace {

constexpr const char* kNothing = "";  // No value asks for nothing.

std::string value_of(const Situation& s, const char* setting) {
  return concat(name_settings(concat("--", setting)), " is ", plain_value(*find_setting(setting), s.config));
}

bool has_ranks(const Situation& s) { return s.num_ranks > 1; }
std::string one_process(const Situation&) { return "there is one process"; }
constexpr const char* kAddWorkers = "add --workers N";

bool has_momentum(const Situation& s) { return s.config.optimizer == "momentum" || s.config.optimizer == "nesterov"; }
bool is_adam(const Situation& s) { return s.config.optimizer == "adam" || s.config.optimizer == "adamw"; }
std::string optimizer_now(const Situation& s) { return value_of(s, "optimizer"); }

std::string sync_now(const Situation& s) { return concat("sync is ", s.layout.sync); }
bool may_be_late(const Situation& s) {
  const SyncMode& sync = s.layout.sync;
  return has_late_gradients(sync) && !is_in_order(sync);
}

bool decays(const Situation& s) { return s.config.schedule_lr != "constant"; }
std::string schedule_now(const Situation& s) { return value_of(s, "schedule-lr"); }
constexpr const char* kWhenItDecays = "with --schedule-lr linear or cosine";
constexpr const char* kLetItDecay = "use --schedule-lr linear or cosine";

bool has_teacher(const Situation& s) { return !s.config.teacher.empty(); }
std::string no_teacher(const Situation&) { return "there is none"; }
constexpr const char *kWithTeacher = "with --teacher", *kAddTeacher = "add --teacher RUN";

bool is_text(const Situation& s) { return s.is_text.value_or(true); }
bool is_made_up(const Situation& s) { return s.config.data == "synthetic" || s.config.data.starts_with("synthetic:"); }
bool is_data(const Situation& s, std::initializer_list<const char*> names) {
  const std::string name = s.config.data.substr(0, s.config.data.find(':'));
  return std::find(names.begin(), names.end(), name) != names.end();
}
bool has_tables(const Situation& s) { return is_data(s, {"csv", "npy", "safetensors"}); }
bool has_picture_files(const Situation& s) { return !s.is_text.value_or(false) && !is_made_up(s) && !has_tables(s); }
bool may_have_pictures(const Situation& s) { return !s.is_text.value_or(false) && !is_data(s, {"csv"}); }
std::string no_pictures(const Situation& s) {
  return concat(name_settings("--data "), s.config.data, is_data(s, {"csv"}) ? " holds rows of a table" : " holds text");
}
std::string files_now(const Situation& s) {
  return concat(name_settings("--data "), s.config.data,
                is_made_up(s)   ? " makes its samples up"
                : has_tables(s) ? " holds numbers"
                                : " holds text");
}
/// Or of a user's own kind.
bool has_many_files(const Situation& s) { return has_tables(s) || is_data(s, {"folder"}) || !s.is_text; }
std::string whole_now(const Situation& s) {
  return concat(name_settings("--data "), s.config.data, is_made_up(s) ? " makes its samples up" : " is read whole or not at all");
}
bool may_have_test_set(const Situation& s) { return !s.is_text.value_or(false) && !is_made_up(s); }
std::string no_test_set(const Situation& s) {
  return concat(name_settings("--data "), s.config.data, is_made_up(s) ? " makes its samples up" : " holds text", " and has no test set");
}
bool writes_text(const Situation& s) { return is_text(s) && s.config.sample_bytes > 0; }
std::string data_now(const Situation& s) {
  return is_text(s) ? name_settings("--sample-bytes is 0") : concat(name_settings("--data "), s.config.data, " holds no text");
}

bool has_replicas(const Situation& s) {
  const std::vector<int> degrees = s.layout.data_degrees();
  return std::any_of(degrees.begin(), degrees.end(), [](int degree) { return degree > 1; });
}
std::string one_replica(const Situation& s) {
  return s.layout.is_model_parallel() ? "dp is 1: no two ranks have the same part of the model" : "there is one process";
}

bool compares_layers(const Situation& s) { return has_teacher(s) && !s.config.hint.empty(); }
std::string no_hint(const Situation&) { return "no layers are compared"; }

bool prunes(const Situation& s) { return !s.config.prune.empty(); }
std::string no_pruning(const Situation&) { return "nothing is pruned"; }

/// Every rank computes in its host's memory.
bool on_host(const Situation& s) { return s.devices().all_cpu(); }

/// Weights of workers differ between exchanges.
bool trains_alone(const Situation& s) { return is_local(s.layout.sync); }
bool has_outer(const Situation& s) { return s.layout.sync.kind == SyncKind::kDiloco; }

bool smooths_labels(const Situation& s) { return s.config.label_smoothing > 0; }
std::string sharp_now(const Situation& /*s*/) { return "no target is smoothed"; }

/// Ranks of one host that could have one copy of the weights together.
bool could_share(const Situation& s) {
  const bool shares_memory = s.config.backend == "shm" || (s.config.backend == "auto" && s.one_host);
  return has_replicas(s) && s.layout.zero == 0 && is_step(s.layout.sync) && s.layout.compress == "none" && on_host(s) && shares_memory;
}
/// Also on several hosts: there `private` is what `auto` means, and not against it.
bool chooses_weights(const Situation& s) {
  return could_share(s) || (s.config.backend == "auto" && !s.one_host && s.layout.zero == 0 && is_step(s.layout.sync));
}
std::string weights_now(const Situation& s) {
  if (!has_replicas(s)) return one_replica(s);
  if (s.layout.zero > 0) return concat("zero=", s.layout.zero, " divides them");
  if (!is_step(s.layout.sync)) return concat("with sync=", s.layout.sync, " each rank has its own already");
  if (s.layout.compress != "none") return concat("with compress=", s.layout.compress, " each rank has its own already");
  return !on_host(s) ? value_of(s, "device") : concat(value_of(s, "backend"), ": each rank has its own already");
}
bool is_virtual(const Situation& s) { return !s.config.virtual_time.empty(); }
bool is_served(const Situation& s) { return is_served(s.config, s.layout); }
bool has_collectives(const Situation& s) { return has_ranks(s) && !is_served(s); }
std::string no_collectives(const Situation& s) {
  return is_served(s) ? concat("with sync=", s.layout.sync, " ranks send messages to rank 0") : one_process(s);
}
bool has_buckets(const Situation& s) {
  return has_replicas(s) && !trains_alone(s) && !is_served(s) && (!could_share(s) || s.config.weights == "private");
}
std::string buckets_now(const Situation& s) {
  if (trains_alone(s)) return concat("with sync=", s.layout.sync, " no gradients travel");
  if (is_served(s)) return concat("with sync=", s.layout.sync, " gradients travel whole");
  return has_replicas(s) ? "the ranks of this host have one copy of the weights, and no buckets" : one_replica(s);
}

bool is_fp16(const Situation& s) { return s.config.precision == "fp16"; }
std::string precision_now(const Situation& s) { return value_of(s, "precision"); }
bool has_run(const Situation& s) { return !s.config.run.empty(); }
std::string no_run(const Situation&) { return "no folder is named"; }
/// A run that goes on finds those from before.
bool removes_checkpoints(const Situation& s) { return s.config.checkpoint_every >= 0 || s.config.resume || s.config.resume_auto; }
std::string one_checkpoint(const Situation& s) { return value_of(s, "checkpoint-every") + ", so one is saved"; }
bool has_pieces(const Situation& s) { return s.num_ranks > 1 || s.config.accumulate > 1; }
std::string one_piece(const Situation&) { return "one worker without accumulation has gradients of one batch size"; }

bool has_stages(const Situation& s) { return s.layout.pp > 1; }
std::string no_stages(const Situation&) { return "it has no pipeline workers"; }
constexpr const char* kAddStages = "add pp=N";
bool cuts(const Situation& s) { return has_stages(s) && s.layout.stages.empty(); }
std::string no_cuts(const Situation& s) { return has_stages(s) ? "the layout's file names the stages" : no_stages(s); }
bool divides(const Situation& s) { return s.layout.tp > 1; }
std::string undivided(const Situation&) { return "tp is 1"; }
bool chooses_layers(const Situation& s) { return s.layout.recompute != "auto" || s.config.memory_limit > 0; }
std::string no_limit(const Situation&) { return "there is no limit to keep, so nothing would recompute"; }
bool sums_gradients(const Situation& s) { return has_replicas(s) || s.layout.is_model_parallel(); }  // The latter is refused elsewhere.

/// Also of workers that are made up, or may join.
bool sends_gradients(const Situation& s) {
  return sums_gradients(s) || (has_server(s.layout.sync) && (is_virtual(s) || !s.config.listen.empty()));
}

/// The axes with more than one rank, as `order` has them.
std::string used_axes(const Layout& layout, const std::string& order) {
  std::string used;
  for (const std::string& axis : split(order, '-')) {
    const bool many = axis == "pp" ? layout.pp > 1 : axis == "tp" ? layout.tp > 1 : has_replicas({Config(), layout});
    if (many) used += " " + axis;
  }
  return used;
}
bool moves_ranks(const Situation& s) { return used_axes(s.layout, s.layout.order) != used_axes(s.layout, Layout().order); }
std::string same_order(const Situation& s) {
  const std::string used = used_axes(s.layout, s.layout.order);
  return used.empty() ? "there is one process" : concat("the axes with more than one rank,", used, ", stand as without it");
}

std::vector<OptionRule> make_option_rules() {
  const auto always = [](const char* name) { return OptionRule{name, kNothing, "", nullptr, nullptr, ""}; };
  return {
      always("model"),
      always("data"),
      {"context", kNothing, "for text", is_text, data_now, "leave it out"},
      {"image-size", "0", "for pictures of files", has_picture_files, files_now, "write the size in synthetic:CxHxW"},
      always("val-samples"),
      {"test-samples", "0", "where the data have a test set", may_have_test_set, no_test_set, "leave it out"},
      {"skip-bad", "false", "for --data folder, csv, npy and safetensors", has_many_files, whole_now, "leave it out"},
      {"augment", "\"none\"", "for pictures", may_have_pictures, no_pictures, "leave it out"},
      always("init-from"),
      always("freeze"),
      always("teacher"),
      {"temperature", kNothing, kWithTeacher, has_teacher, no_teacher, kAddTeacher},
      {"alpha", kNothing, kWithTeacher, has_teacher, no_teacher, kAddTeacher},
      {"teacher-answers", "\"auto\"", kWithTeacher, has_teacher, no_teacher, kAddTeacher},
      {"hint", "\"\"", kWithTeacher, has_teacher, no_teacher, kAddTeacher},
      {"hint-weight", kNothing, "with --hint", compares_layers, no_hint, "add --hint STUDENT:TEACHER"},
      always("prune"),
      {"prune-until", kNothing, "with --prune", prunes, no_pruning, "add --prune weight:0.9"},
      always("quantize-aware"),
      always("plugin"),
      always("workers"),
      always("layout"),
      {"backend", "\"auto\"", "on two ranks or more, but for sync=async, stale:K, queue and a quorum", has_collectives, no_collectives,
       "use --layout sync=step, local:H or diloco:H on two ranks or more"},
      {"weights", "\"auto\"",
       "where two ranks or more of a host have the same part of the model: dp=2 or more, zero=0, sync=step, "
       "compress=none, --backend auto or shm",
       chooses_weights, weights_now, "take dp alone"},
      {"shares", "\"equal\"", "on two ranks or more", has_ranks, one_process, kAddWorkers},
      {"outer-lr", kNothing, "with sync=diloco:H", has_outer, sync_now, "use --layout sync=diloco:H"},
      {"outer-momentum", kNothing, "with sync=diloco:H", has_outer, sync_now, "use --layout sync=diloco:H"},
      {"remedy", "\"\"", "with sync=async and stale:K, K above 0", may_be_late, sync_now, "use --layout sync=async"},
      always("virtual"),
      {"listen", "\"\"", "with sync=async, stale:K, queue and a quorum on real workers", is_served,
       [](const Situation& s) { return is_virtual(s) ? std::string("--virtual makes its workers up") : sync_now(s); },
       "use --layout sync=async, stale:K or queue without --virtual"},
      always("sync-batch-norm"),
      always("device"),
      always("threads"),
      {"bucket-bytes", "0",
       "where gradients travel in buckets: dp=2 or more, sync=step, with zero=1 to 3, compress, --weights private or a network's "
       "--backend",
       has_buckets, buckets_now, "use sync=step with --weights private, or zero=1 to 3"},
      {"timeout", kNothing, "on two ranks or more", has_ranks, one_process, kAddWorkers},
      {"grace", kNothing, "on two ranks or more", has_ranks, one_process, kAddWorkers},
      always("global-batch"),
      always("batch-schedule"),
      always("study"),
      always("accumulate"),
      always("optimizer"),
      always("lr"),
      {"momentum", kNothing, "with --optimizer momentum or nesterov", has_momentum, optimizer_now,
       "use --optimizer momentum (or nesterov)"},
      {"beta1", kNothing, "with --optimizer adam or adamw", is_adam, optimizer_now, "use --optimizer adam (or adamw)"},
      {"beta2", kNothing, "with --optimizer adam or adamw", is_adam, optimizer_now, "use --optimizer adam (or adamw)"},
      {"eps", kNothing, "with --optimizer adam or adamw", is_adam, optimizer_now, "use --optimizer adam (or adamw)"},
      always("schedule-lr"),
      {"lr-end-factor", kNothing, kWhenItDecays, decays, schedule_now, kLetItDecay},
      {"decay-steps", "0", kWhenItDecays, decays, schedule_now, kLetItDecay},
      always("warmup-steps"),
      always("weight-decay"),
      always("loss"),
      always("label-smoothing"),
      {"label-smoothing-over", "\"all\"", "with --label-smoothing", smooths_labels, sharp_now, "use --label-smoothing X"},
      always("clip-norm"),
      always("precision"),
      {"loss-scale", "0.0", "with --precision fp16", is_fp16, precision_now, "use --precision fp16"},
      always("steps"),
      always("epochs"),
      always("metrics"),
      always("goal"),
      always("patience"),
      always("eval-every"),
      always("checkpoint-every"),
      {"keep-checkpoints", kNothing, "with --checkpoint-every 0 or N, or beside --resume", removes_checkpoints, one_checkpoint,
       "use --checkpoint-every N"},
      {"resume", "false", "with --run", has_run, no_run, "add --run DIR"},
      always("run"),
      always("seed"),
      always("memory-limit"),
      always("inject"),
      {"prompt", "\"\"", "for text, with --sample-bytes above 0", writes_text, data_now, "leave it out"},
      {"sample-bytes", "0", "for text", is_text, data_now, "leave it out"},
      {"noise-scale", "0", "on two ranks or more, or with --accumulate 2 or more", has_pieces, one_piece,
       "add --workers N or --accumulate N"},
      always("log-every"),
      always("serve"),
      always("json"),
      always("quiet"),
  };
}

std::vector<OptionRule> make_layout_rules() {
  const auto always = [](const char* name) { return OptionRule{name, kNothing, "", nullptr, nullptr, ""}; };
  return {
      always("dp"),
      always("pp"),
      always("tp"),
      {"zero", kNothing, "with dp=2 or more", has_replicas, one_replica, "add ranks (dp=2, --workers N)"},
      always("sync"),
      {"schedule", kNothing, "with pp=2 or more", has_stages, no_stages, kAddStages},
      {"microbatches", kNothing, "with pp=2 or more", has_stages, no_stages,
       "use --accumulate N, which divides each rank's batch, or add pp=N"},
      always("accumulate"),
      always("precision"),
      {"shares", kNothing, "on two ranks or more", has_ranks, one_process, kAddWorkers},
      {"recompute", kNothing, "as auto with --memory-limit, as all always", chooses_layers, no_limit,
       "add --memory-limit BYTES, or use recompute=all"},
      {"compress", kNothing, "with dp=2 or more, and with sync=async and stale:K also with --virtual and --listen", sends_gradients,
       one_replica, kAddWorkers},
      {"split", kNothing, "with pp=2 or more, where no file names the stages", cuts, no_cuts, kAddStages},
      {"order", kNothing, "where it moves an axis of two ranks or more", moves_ranks, same_order, "give other degrees"},
      {"sequence", kNothing, "with tp=2 or more", divides, undivided, "use tp=N as well"},
      always("stages"),
  };
}

/// Of a key that is not its default; "" otherwise.
std::string value_of_key(const Layout& layout, const std::string& key) {
  const Json mine = to_json(layout), standard = to_json(Layout());
  if (!mine.contains(key) || (standard.contains(key) && standard[key] == mine[key])) return "";
  return mine[key].is_string() ? mine[key].get<std::string>() : mine[key].dump();
}

[[noreturn]] void refuse(const std::string& what, const OptionRule& rule, const Situation& situation) {
  const std::string instead =
      rule.instead == std::string("leave it out") ? rule.instead : concat(name_settings(rule.instead), ", or leave it out");
  fail(ErrorCode::kBadInput, what, " would do nothing here: it acts ", name_settings(rule.when), ", and ", rule.now(situation), "; ",
       instead);
}

bool is_ignored(const OptionRule& rule, const Setting& setting, const Situation& situation) {
  return rule.acts && !rule.acts(situation) && is_given(situation.config, setting) && setting.get(situation.config) != rule.off;
}

}  // namespace

std::string plain_value(const Setting& setting, const Config& config) { return text_of_toml(setting.get(config)); }

const std::vector<OptionRule>& option_rules() {
  static const std::vector<OptionRule> table = make_option_rules();
  return table;
}

const std::vector<OptionRule>& layout_rules() {
  static const std::vector<OptionRule> table = make_layout_rules();
  return table;
}

std::optional<bool> is_text_data(const std::string& data) {
  if (data.starts_with("text:") || data == "synthetic:text" || data.starts_with("synthetic:text,")) return true;
  const std::string name = data.substr(0, data.find(':'));
  for (const char* numbers : {"fashion-mnist", "mnist", "cifar10", "folder", "csv", "npy", "safetensors", "synthetic"})
    if (name == numbers) return false;
  return std::nullopt;
}

bool is_served(const Config& config, const Layout& layout) { return has_server(layout.sync) && config.virtual_time.empty(); }

Situation situation_of(const Config& config) {
  Situation situation{.config = config, .layout = {}, .num_ranks = std::max(1, config.workers), .is_text = is_text_data(config.data)};
  try {
    situation.layout = parse_layout(config.layout, config.workers);
    situation.num_ranks = situation.layout.num_ranks();
  } catch (const Error&) {  // Refused where it is used.
  }
  return situation;
}

bool acts(const std::string& setting, const Situation& situation) {
  const auto rule =
      std::find_if(option_rules().begin(), option_rules().end(), [&](const OptionRule& each) { return each.name == setting; });
  return rule != option_rules().end() && (!rule->acts || rule->acts(situation));
}

void check_options(const Situation& situation) {
  for (const OptionRule& rule : layout_rules()) {
    const std::string value = value_of_key(situation.layout, rule.name);
    if (!value.empty() && rule.acts && !rule.acts(situation))
      refuse(concat(name_settings("--layout: "), rule.name, "=", value), rule, situation);
  }
  for (const OptionRule& rule : option_rules()) {
    const Setting& setting = *find_setting(rule.name);
    if (is_ignored(rule, setting, situation))
      refuse(concat(name_settings(concat("--", rule.name)), setting.is_flag ? "" : " " + plain_value(setting, situation.config)), rule,
             situation);
  }
}

std::vector<std::string> leave_out_overridden(Config& merged, const Config& file, const std::set<std::string>& command_line) {
  const Config defaults;
  std::vector<std::string> names;
  for (const OptionRule& rule : option_rules()) {
    const Setting& setting = *find_setting(rule.name);
    if (command_line.contains(rule.name) || is_ignored(rule, setting, situation_of(file)) ||
        !is_ignored(rule, setting, situation_of(merged)))
      continue;
    setting.copy(merged, defaults);
    names.emplace_back(rule.name);
  }
  return names;
}

}  // namespace cohort
