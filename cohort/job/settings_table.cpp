// The table of settings: one row an option of `cohort train` and a key of its files. Rows of one group stand together; the groups stand in
// the order of the help.

#include <algorithm>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/base/text/toml_text.h"
#include "cohort/job/config.h"
#include "cohort/job/specs/batch_schedule.h"
#include "cohort/job/specs/devices.h"
#include "cohort/job/specs/pruning.h"
#include "cohort/job/specs/small_specs.h"

namespace cohort {
namespace {

template <typename T>
Setting number_setting(const std::string& group, const std::string& name, const std::string& value_name, const std::string& help,
                       T Config::* member, double minimum, double maximum) {
  Setting setting{name, value_name, help, group, false, {}, {}, {}};
  setting.set = [=](Config& config, const std::string& text) {
    if constexpr (std::is_floating_point_v<T>) {
      const auto value = parse_number(text);
      if (!value || *value < minimum || *value > maximum)
        fail(ErrorCode::kBadInput, name_settings("--" + name), " ", text, ": expected a number from ", minimum, " to ", maximum);
      config.*member = *value;
    } else {
      const auto value = parse_integer(text);
      if (!value || static_cast<double>(*value) < minimum || static_cast<double>(*value) > maximum)
        fail(ErrorCode::kBadInput, name_settings("--" + name), " ", text, ": expected a whole number from ", static_cast<int64_t>(minimum),
             " to ", static_cast<int64_t>(maximum));
      config.*member = static_cast<T>(*value);
    }
  };
  setting.get = [=](const Config& config) {
    if constexpr (std::is_floating_point_v<T>) return toml_number(config.*member);
    else return std::to_string(config.*member);
  };
  setting.copy = [=](Config& to, const Config& from) { to.*member = from.*member; };
  return setting;
}

Setting text_setting(const std::string& group, const std::string& name, const std::string& value_name, const std::string& help,
                     std::string Config::* member, const std::vector<std::string>& allowed = {}) {
  Setting setting{name, value_name, help, group, false, {}, {}, {}};
  setting.set = [=](Config& config, const std::string& text) {
    if (printable(text) != text)
      fail(ErrorCode::kBadInput, name_settings("--" + name), " ", printable(text), ": holds bytes that are no text (UTF-8)");
    if (text.empty() && !(Config().*member).empty())
      fail(ErrorCode::kBadInput, name_settings("--" + name), " \"\": the value is empty; give ", value_name, ", or leave it out (",
           Config().*member, ")");
    const auto known = [&](const char* value) { return std::find(allowed.begin(), allowed.end(), value) != allowed.end(); };
    if (!allowed.empty() && !known(text.c_str()))
      fail(ErrorCode::kBadInput, name_settings("--" + name), " ", text.find('\n') == std::string::npos ? text : quote_text(text),
           text == "gpu" && known("cuda") ? std::string(" (did you mean 'cuda'?)") : did_you_mean(text, allowed), ": expected one of ",
           join(allowed, " "));
    config.*member = text;
  };
  setting.get = [=](const Config& config) { return toml_string(config.*member); };
  setting.copy = [=](Config& to, const Config& from) { to.*member = from.*member; };
  return setting;
}

Setting flag_setting(const std::string& group, const std::string& name, const std::string& help, bool Config::* member) {
  Setting setting{name, "", help, group, true, {}, {}, {}};
  setting.set = [=](Config& config, const std::string& text) {
    if (text != "true" && text != "false") fail(ErrorCode::kBadInput, name_settings("--" + name), " ", text, ": expected true or false");
    config.*member = text == "true";
  };
  setting.get = [=](const Config& config) { return std::string(config.*member ? "true" : "false"); };
  setting.copy = [=](Config& to, const Config& from) { to.*member = from.*member; };
  return setting;
}

/// A number, or a word, which is kept as `kept`.
template <typename T>
Setting or_word(Setting setting, T Config::* member, T kept, const std::string& word) {
  setting.set = [=, set = setting.set](Config& config, const std::string& text) {
    if (text == word) config.*member = kept;
    else set(config, text);
  };
  setting.get = [=, get = setting.get](const Config& config) { return config.*member == kept ? toml_string(word) : get(config); };
  return setting;
}

template <typename T>
Setting or_auto(Setting setting, T Config::* member, T kept) {
  return or_word(std::move(setting), member, kept, "auto");
}

constexpr double kMany = 1e15;
Setting checkpoint_every_setting(const std::string& group) {
  Setting setting =
      number_setting(group, "checkpoint-every", "N", "steps between checkpoints (0: at every evaluation; end: at the end alone)",
                     &Config::checkpoint_every, 0, kMany);
  return or_word(std::move(setting), &Config::checkpoint_every, int64_t{-1}, "end");
}

Setting resume_setting(const std::string& group) {
  Setting setting =
      flag_setting(group, "resume",
                   "go on from the newest checkpoint of --run; auto: begin where there is none yet, and where the run is done "
                   "say so: one command for the first start and each restart",
                   &Config::resume);
  setting.value_name = "[=auto]";
  setting.set = [set = setting.set](Config& config, const std::string& text) {
    if (text != "auto" && text != "true" && text != "false")
      fail(ErrorCode::kBadInput, name_settings("--resume="), text, name_settings(": expected --resume or --resume=auto"));
    config.resume_auto = text == "auto";
    set(config, config.resume_auto ? "false" : text);
  };
  setting.get = [get = setting.get](const Config& config) { return config.resume_auto ? toml_string("auto") : get(config); };
  setting.copy = [copy = setting.copy](Config& to, const Config& from) {
    copy(to, from);
    to.resume_auto = from.resume_auto;
  };
  return setting;
}

Setting device_setting(const std::string& group) {
  Setting setting =
      text_setting(group, "device", "NAME", "cpu, cuda or cuda:N; or one a rank with commas, as cuda:0,cpu,cpu", &Config::device);
  setting.set = [set = setting.set](Config& config, const std::string& text) {
    set(config, text);
    parse_devices(text);
  };
  return setting;
}

/// Text that `check` can read, or `none`, which is kept as "".
template <typename Check>
Setting checked_text_setting(const std::string& group, const std::string& name, const std::string& value_name, const std::string& help,
                             std::string Config::* member, Check check) {
  Setting setting = text_setting(group, name, value_name, help, member);
  setting.set = [=, set = setting.set](Config& config, const std::string& text) {
    set(config, text);
    check(text);
    if (text == "none") (config.*member).clear();
  };
  return setting;
}

/// Text, or `none`, which is kept as "": a run that goes on can leave the clock.
Setting virtual_setting(const std::string& group) {
  Setting setting =
      text_setting(group, "virtual", "SPEC",
                   "workers under a simulated clock in one process: workers=64,speed=lognormal:0.3,link=1ms:1Gbit,mtbf=SECONDS,.. or none",
                   &Config::virtual_time);
  setting.set = [set = setting.set](Config& config, const std::string& text) { set(config, text == "none" ? "" : text); };
  return setting;
}

std::vector<Setting> settings_of_workers() {
  const std::string what = "What is trained", how = "How it is split";
  return {
      text_setting(what, "model", "NAME[:k=v,..]", "model and its sizes; `cohort doctor` lists the names", &Config::model),
      text_setting(
          what, "data", "SPEC",
          "fashion-mnist[:DIR], mnist:DIR, cifar10:DIR, text:FILE-OR-DIR[,vocabulary=FILE], folder:DIR, csv:FILE,target=COLUMN, npy:DIR, "
          "safetensors:FILE, synthetic:SHAPE",
          &Config::data),
      number_setting(what, "context", "N", "input bytes, or pieces of a vocabulary, of one text sample", &Config::context, 1, 1e6),
      number_setting(what, "image-size", "N", "pictures of files are read N x N large (0: as they are)", &Config::image_size, 0, 4096),
      number_setting(what, "val-samples", "N", "samples kept for validation (0: the data set's rule)", &Config::val_samples, 0, 2e9),
      or_word(number_setting(what, "test-samples", "N",
                             "samples of the test set, where the data have one, that are evaluated at the end (all: the default; 0: none)",
                             &Config::test_samples, 0, 2e9),
              &Config::test_samples, Config::kAll, "all"),
      flag_setting(what, "skip-bad", "pictures and rows of files that cannot be read are left out and counted", &Config::skip_bad),
      text_setting(what, "augment", "HOW", "pictures of the training are changed at random: crop, flip, crop,flip, or none",
                   &Config::augment, {"none", "crop", "flip", "crop,flip"}),
      text_setting(what, "init-from", "RUN|FILE", "begins with the weights of a run or a safetensors file", &Config::init_from),
      text_setting(what, "freeze", "NAME,..", "tensors or layers that are not trained; * and ? stand for any letters", &Config::freeze),
      text_setting(what, "teacher", "RUN|FILE", "a trained model on the same data, whose scores are learnt from (distillation)",
                   &Config::teacher),
      number_setting(what, "temperature", "T", "--teacher: both models' scores are divided by T (default 1)", &Config::temperature, 0.01,
                     1000),
      number_setting(what, "alpha", "A", "--teacher: weight of the part of the loss that is against it (default 0.5)", &Config::alpha, 0,
                     1),
      text_setting(what, "teacher-answers", "HOW",
                   "--teacher: cached (kept in the user's cache), live (asked in every step), beside (on cores of its own), asked (one of "
                   "these two), or auto",
                   &Config::teacher_answers, {"auto", "cached", "live", "beside", "asked"}),
      checked_text_setting(what, "hint", "STUDENT:TEACHER,..",
                           "--teacher: layers of both that are to look at the same places, as conv2:conv2, or none", &Config::hint,
                           parse_hints),
      number_setting(what, "hint-weight", "W", "--hint: weight of the part of the loss that compares layers (default 1)",
                     &Config::hint_weight, 0, 1e6),
      checked_text_setting(
          what, "prune", "HOW",
          "the smallest weights become zero while it trains: weight:0.9 (that part of all; :uniform of each matrix), 2:4, or none",
          &Config::prune, parse_pruning),
      number_setting(what, "prune-until", "X", "part of the steps after which no more weights are pruned (default 0.7)",
                     &Config::prune_until, 0.01, 1),
      checked_text_setting(what, "quantize-aware", "BITS",
                           "layers compute with rounded weights while it trains: 8 (as int8 kernels do), 4, 4:GROUP, or none",
                           &Config::quantize_aware, parse_quantise_aware),
      text_setting(what, "plugin", "FILE.so", "loads models that a shared library registers", &Config::plugin),
      number_setting(how, "workers", "N", "ranks to start on this machine (0: what the launcher started, else 1)", &Config::workers, 0,
                     4096),
      text_setting(how, "layout", "LAYOUT",
                   "dp (all workers, the default), auto (measures and plans), single, or keys such as dp=2,zero=1,compress=int8",
                   &Config::layout),
      text_setting(how, "backend", "NAME",
                   "what carries the exchange: auto, shm, gloo, mpi, nccl, or shm+gloo, shm+mpi (inside + between hosts)", &Config::backend,
                   {"auto", "shm", "gloo", "mpi", "nccl", "shm+gloo", "shm+mpi"}),
      text_setting(how, "weights", "WHERE", "auto (one copy a host where its ranks share memory) or private (one a rank)", &Config::weights,
                   {"auto", "private"}),
      text_setting(how, "shares", "SHARES", "of the global batch: equal, auto (by measured speed), or one number a rank, as 3:1",
                   &Config::shares),
      number_setting(how, "outer-lr", "X", "sync=diloco: rate of its outer optimizer (default 0.7)", &Config::outer_lr, 1e-6, 100),
      number_setting(how, "outer-momentum", "X", "sync=diloco: its Nesterov momentum (default 0.9)", &Config::outer_momentum, 0, 0.999999),
      text_setting(how, "remedy", "rate:FACTOR", "against stale gradients: all learning rates times FACTOR", &Config::remedy),
      virtual_setting(how),
      text_setting(how, "listen", "HOST:PORT", "sync=async, stale, queue: where `cohort join` finds this training (port 0: a free one)",
                   &Config::listen),
      flag_setting(how, "sync-batch-norm", "batch norm over the batches of all ranks", &Config::sync_batch_norm),
      device_setting(how),
      number_setting(how, "threads", "N", "compute threads of a rank (0: cores / ranks on this machine)", &Config::threads, 0, 1024),
      number_setting(how, "bucket-bytes", "N", "gradients exchanged together (0: chosen)", &Config::bucket_bytes, 0, 1e12),
      number_setting(how, "timeout", "SECONDS", "the longest any exchange may take", &Config::timeout, 0.1, 86400),
      number_setting(how, "grace", "SECONDS", "after Ctrl-C or SIGTERM ranks that were started here may finish their step for so long",
                     &Config::grace, 0.1, 86400),
  };
}

std::vector<Setting> settings_of_steps() {
  const std::string step = "The step", when = "How long, and what is kept", other = "Other";
  return {
      or_auto(number_setting(step, "global-batch", "B", "samples of one optimizer step, over all ranks; auto: as --study has it",
                             &Config::global_batch, 1, 1e9),
              &Config::global_batch, int64_t{0}),
      checked_text_setting(step, "batch-schedule", "STEP:FACTOR,..",
                           "the batch grows: 600:4,900:16 is 4 times --global-batch after 600 steps, 16 times after 900",
                           &Config::batch_schedule, parse_batch_schedule),
      text_setting(step, "study", "DIR",
                   "a study with its report: its best trial's metaparameters, and with --global-batch auto its batch size", &Config::study),
      number_setting(step, "accumulate", "N", "micro-steps between exchanges", &Config::accumulate, 1, 1e6),
      text_setting(step, "optimizer", "NAME", "sgd, momentum, nesterov, adam, adamw", &Config::optimizer,
                   {"sgd", "momentum", "nesterov", "adam", "adamw"}),
      or_auto(number_setting(step, "lr", "X", "learning rate; auto (the default): by optimizer and model, see below", &Config::lr, 0, 1e6),
              &Config::lr, Config::kAuto),
      number_setting(step, "momentum", "X", "part of the last update that is kept (default 0.9)", &Config::momentum, 0, 0.999999),
      number_setting(step, "beta1", "X", "decay of the mean of gradients (default 0.9)", &Config::beta1, 0, 0.999999),
      number_setting(step, "beta2", "X", "decay of the mean of their squares (default 0.999)", &Config::beta2, 0, 0.99999999),
      number_setting(step, "eps", "X", "added to the root of that mean (default 1e-8)", &Config::eps, 0, 1),
      text_setting(step, "schedule-lr", "NAME", "constant, linear, cosine", &Config::schedule_lr, {"constant", "linear", "cosine"}),
      number_setting(step, "lr-end-factor", "X", "the last learning rate, as a part of --lr", &Config::lr_end_factor, 0, 1),
      number_setting(step, "decay-steps", "N", "the decay ends N steps after the warm-up (0: with the run)", &Config::decay_steps, 0,
                     kMany),
      number_setting(step, "warmup-steps", "N", "learning rate rises linearly over N steps", &Config::warmup_steps, 0, kMany),
      or_auto(number_setting(step, "weight-decay", "X",
                             "L2 term of sgd, momentum, nesterov, adam (default 0); decoupled in adamw (default 0.01)",
                             &Config::weight_decay, 0, 1e3),
              &Config::weight_decay, Config::kAuto),
      text_setting(step, "loss", "NAME", "cross-entropy, mse, binary; auto (the default): the model's own, else by the data", &Config::loss,
                   {"auto", "cross-entropy", "mse", "binary"}),
      number_setting(step, "label-smoothing", "X", "part of each target that is spread over all classes, in training",
                     &Config::label_smoothing, 0, 0.999999),
      text_setting(step, "label-smoothing-over", "WHICH",
                   "classes that it is spread over: all, the right one too (as PyTorch does), or others (as Shallue et al. 2019)",
                   &Config::label_smoothing_over, {"all", "others"}),
      number_setting(step, "clip-norm", "X", "largest global norm of the gradient (0: no clipping)", &Config::clip_norm, 0, 1e12),
      text_setting(step, "precision", "NAME", "of the arithmetic: fp32, bf16, fp16; weights stay fp32", &Config::precision,
                   {"fp32", "bf16", "fp16"}),
      number_setting(step, "loss-scale", "X", "a fixed one; 0: dynamic", &Config::loss_scale, 0, 1e30),
      number_setting(when, "steps", "N", "optimizer steps", &Config::steps, 0, kMany),
      number_setting(when, "epochs", "X", "passes over the data, where --steps is not given (0: one)", &Config::epochs, 0, 1e9),
      text_setting(when, "metrics", "NAME,..",
                   "what else evaluations tell: top5-error, balanced-error, f1, perplexity; of numbers mae, r2; or your own",
                   &Config::metrics),
      text_setting(when, "goal", "EXPR", "stop when an evaluation reaches it, e.g. 'val_error<0.12'", &Config::goal),
      number_setting(when, "patience", "N",
                     "stop after N evaluations without a lower validation loss; a lower one is saved in any case (0: never)",
                     &Config::patience, 0, kMany),
      number_setting(when, "eval-every", "N", "steps between evaluations (0: once an epoch)", &Config::eval_every, 0, kMany),
      checkpoint_every_setting(when),
      number_setting(when, "keep-checkpoints", "N", "how many of the newest are kept", &Config::keep_checkpoints, 2, 1e6),
      resume_setting(when),
      text_setting(when, "run", "DIR", "run folder (default: runs/MODEL-DATE-TIME)", &Config::run),
      number_setting(other, "seed", "S", "of weights, data order and dropout", &Config::seed, 0, 9e15),
      number_setting(other, "memory-limit", "BYTES", "memory that the tensors of a rank may take; 0: no limit", &Config::memory_limit, 0,
                     1e15),
      text_setting(other, "inject", "FAULT", "slow:RANK:FACTOR, pause:RANK:SECONDS, kill:RANK:STEP; several with commas", &Config::inject),
      text_setting(other, "prompt", "TEXT", "how the text sample at the end begins", &Config::prompt),
      number_setting(other, "sample-bytes", "N", "length of the text sample at the end", &Config::sample_bytes, 0, 1e6),
      number_setting(other, "noise-scale", "N",
                     "every N steps the gradient noise scale is measured (0: never); needs workers or --accumulate", &Config::noise_scale,
                     0, kMany),
      number_setting(other, "log-every", "N", "steps between lines of metrics", &Config::log_every, 1, kMany),
      or_word(number_setting(other, "serve", "[PORT]", "live report in a browser on this host (0: a free port)", &Config::serve, 0, 65535),
              &Config::serve, Config::kNotServed, "none"),
      flag_setting(other, "json", "stdout carries one JSON object a line and nothing else", &Config::json),
      flag_setting(other, "quiet", "no progress bar", &Config::quiet),
  };
}

}  // namespace

const std::vector<Setting>& settings() {
  static const std::vector<Setting> table = [] {
    std::vector<Setting> made = settings_of_workers(), steps = settings_of_steps();
    std::move(steps.begin(), steps.end(), std::back_inserter(made));
    for (Setting& setting : made) {
      setting.set = [set = setting.set, name = setting.name](Config& config, const std::string& text) {
        set(config, text);
        config.given.insert(name);
      };
      setting.copy = [copy = setting.copy, name = setting.name](Config& to, const Config& from) {
        copy(to, from);
        if (from.given.contains(name)) to.given.insert(name);
        else to.given.erase(name);
      };
    }
    return made;
  }();
  return table;
}

const Setting* find_setting(const std::string& name) {
  for (const Setting& setting : settings())
    if (setting.name == name) return &setting;
  return nullptr;
}

bool is_given(const Config& config, const Setting& setting) {
  static const Config defaults;
  return config.given.contains(setting.name) || setting.get(config) != setting.get(defaults);
}

}  // namespace cohort
