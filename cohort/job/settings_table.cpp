// The table of settings: one row for each option of `cohort train` and key of its files, with its help, its range, when it has an effect
// (conditions.h) and which of its values are never refused. Rows of one group stand together, in the order of the help.

#include <algorithm>
#include <type_traits>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/base/text/toml_text.h"
#include "cohort/job/conditions.h"
#include "cohort/job/config.h"
#include "cohort/job/option_rules.h"
#include "cohort/job/specs/batch_schedule.h"
#include "cohort/job/specs/devices.h"
#include "cohort/job/specs/pruning.h"
#include "cohort/job/specs/small_specs.h"

namespace cohort {
namespace {

using namespace conditions;

constexpr const char* kDefaultIsOff = "default";

struct SettingsRow {
  Setting setting;
  Condition condition = {};
  std::string neutral_value = {};  ///< As Setting::get writes it.

  /// `off`: the value that asks for nothing, and is never refused.
  SettingsRow& only(const Condition& when, const std::string& off = "") {
    condition = when;
    neutral_value = off == kDefaultIsOff ? setting.get(Config()) : off;
    return *this;
  }
  /// Takes `word` as well, which is kept as `kept`.
  template <typename T>
  SettingsRow& or_word(const std::string& word, T Config::* member, std::type_identity_t<T> kept) {
    setting.set = [=, set = setting.set](Config& config, const std::string& text) {
      if (text == word) config.*member = kept;
      else set(config, text);
    };
    setting.get = [=, get = setting.get](const Config& config) { return config.*member == kept ? toml_string(word) : get(config); };
    return *this;
  }
  /// The text is one that `check` can read.
  template <typename Check>
  SettingsRow& checked(Check check) {
    setting.set = [=, set = setting.set](Config& config, const std::string& text) {
      set(config, text);
      check(text);
    };
    return *this;
  }
  /// `none` is kept as "", so that a run that goes on can leave the setting out.
  SettingsRow& or_none() {
    setting.set = [set = setting.set](Config& config, const std::string& text) { set(config, text == "none" ? "" : text); };
    return *this;
  }
};

constexpr double kMany = 1e15;

class SettingsTable {
 public:
  explicit SettingsTable(std::vector<SettingsRow>& rows) : rows_(rows) {}

  void group(const char* name) { group_ = name; }

  template <typename T>
  SettingsRow& number(const std::string& name, const char* value_name, const char* help, T Config::* member, double minimum,
                      double maximum) {
    SettingsRow& row = add(name, value_name, help, member);
    row.setting.set = [=](Config& config, const std::string& text) {
      constexpr bool kIsReal = std::is_floating_point_v<T>;
      const auto value = [&] {
        if constexpr (kIsReal) return parse_number(text);
        else return parse_integer(text);
      }();
      if (!value || static_cast<double>(*value) < minimum || static_cast<double>(*value) > maximum) {
        using Shown = std::conditional_t<kIsReal, double, int64_t>;
        fail(ErrorCode::kBadInput, name_settings("--" + name), " ", text, ": expected a ", kIsReal ? "" : "whole ", "number from ",
             static_cast<Shown>(minimum), " to ", static_cast<Shown>(maximum));
      }
      config.*member = static_cast<T>(*value);
    };
    row.setting.get = [=](const Config& config) {
      if constexpr (std::is_floating_point_v<T>) return toml_number(config.*member);
      else return std::to_string(config.*member);
    };
    return row;
  }

  SettingsRow& text(const std::string& name, const std::string& value_name, const char* help, std::string Config::* member,
                    const std::vector<std::string>& allowed = {}) {
    SettingsRow& row = add(name, value_name, help, member);
    row.setting.set = [=](Config& config, const std::string& text) {
      if (printable(text) != text)
        fail(ErrorCode::kBadInput, name_settings("--" + name), " ", printable(text), ": holds bytes that are no text (UTF-8)");
      if (text.empty() && !(Config().*member).empty())
        fail(ErrorCode::kBadInput, name_settings("--" + name), " \"\": the value is empty; give ", value_name, ", or leave it out (",
             Config().*member, ")");
      if (!allowed.empty() && std::find(allowed.begin(), allowed.end(), text) == allowed.end())
        fail(ErrorCode::kBadInput, name_settings("--" + name), " ", text.find('\n') == std::string::npos ? text : quote_text(text),
             did_you_mean(text, allowed), ": expected one of ", join(allowed, " "));
      config.*member = text;
    };
    row.setting.get = [=](const Config& config) { return toml_string(config.*member); };
    return row;
  }

  SettingsRow& flag(const std::string& name, const char* help, bool Config::* member) {
    SettingsRow& row = add(name, "", help, member);
    row.setting.is_flag = true;
    row.setting.set = [=](Config& config, const std::string& text) {
      if (text != "true" && text != "false") fail(ErrorCode::kBadInput, name_settings("--" + name), " ", text, ": expected true or false");
      config.*member = text == "true";
    };
    row.setting.get = [=](const Config& config) { return std::string(config.*member ? "true" : "false"); };
    return row;
  }

 private:
  template <typename T>
  SettingsRow& add(const std::string& name, const std::string& value_name, const char* help, T Config::* member) {
    rows_.push_back({.setting = {name, value_name, help, group_}});
    rows_.back().setting.copy = [=](Config& to, const Config& from) { to.*member = from.*member; };
    return rows_.back();
  }

  std::vector<SettingsRow>& rows_;
  std::string group_;
};

/// --resume is a flag that also takes `auto`, which has a member of its own.
void add_auto(Setting& resume) {
  resume.value_name = "[=auto]";
  resume.set = [set = resume.set](Config& config, const std::string& text) {
    if (text != "auto" && text != "true" && text != "false")
      fail(ErrorCode::kBadInput, name_settings("--resume="), text, name_settings(": expected --resume or --resume=auto"));
    config.resume_auto = text == "auto";
    set(config, config.resume_auto ? "false" : text);
  };
  resume.get = [get = resume.get](const Config& config) { return config.resume_auto ? toml_string("auto") : get(config); };
  resume.copy = [copy = resume.copy](Config& to, const Config& from) {
    copy(to, from);
    to.resume_auto = from.resume_auto;
  };
}

void add_workers(SettingsTable& t) {
  t.group("What is trained");
  t.text("model", "NAME[:k=v,..]", "model and its sizes; `cohort doctor` lists the names", &Config::model);
  t.text("data", "SPEC",
         "fashion-mnist[:DIR], mnist:DIR, cifar10:DIR, text:FILE-OR-DIR[,vocabulary=FILE], folder:DIR, csv:FILE,target=COLUMN, npy:DIR, "
         "safetensors:FILE, synthetic:SHAPE",
         &Config::data);
  t.number("context", "N", "input bytes, or pieces of a vocabulary, of one text sample", &Config::context, 1, 1e6).only(kForText);
  t.number("image-size", "N", "pictures of files are read N x N large (0: as they are)", &Config::image_size, 0, 4096)
      .only(kForPictureFiles, kDefaultIsOff);
  t.number("val-samples", "N", "samples kept for validation (0: the data set's rule)", &Config::val_samples, 0, 2e9);
  t.number("test-samples", "N",
           "samples of the test set, where the data have one, that are evaluated at the end (all: the default; 0: none)",
           &Config::test_samples, 0, 2e9)
      .or_word("all", &Config::test_samples, Config::kAll)
      .only(kWithTestSet, "0");
  t.flag("skip-bad", "pictures and rows of files that cannot be read are left out and counted", &Config::skip_bad)
      .only(kForManyFiles, kDefaultIsOff);
  t.text("augment", "HOW", "pictures of the training are changed at random: crop, flip, crop,flip, or none", &Config::augment,
         {"none", "crop", "flip", "crop,flip"})
      .only(kForPictures, kDefaultIsOff);
  t.text("init-from", "RUN|FILE", "begins with the weights of a run or a safetensors file", &Config::init_from);
  t.text("freeze", "NAME,..", "tensors or layers that are not trained; * and ? stand for any letters", &Config::freeze);
  t.text("teacher", "RUN|FILE", "a trained model on the same data, whose scores are learnt from (distillation)", &Config::teacher);
  t.number("temperature", "T", "--teacher: both models' scores are divided by T (default 1)", &Config::temperature, 0.01, 1000)
      .only(kWithTeacher);
  t.number("alpha", "A", "--teacher: weight of the part of the loss that is against it (default 0.5)", &Config::alpha, 0, 1)
      .only(kWithTeacher);
  t.text(
       "teacher-answers", "HOW",
       "--teacher: cached (kept in the user's cache), live (asked in every step), beside (on cores of its own), asked (one of these two), "
       "or auto",
       &Config::teacher_answers, {"auto", "cached", "live", "beside", "asked"})
      .only(kWithTeacher, kDefaultIsOff);
  t.text("hint", "STUDENT:TEACHER,..", "--teacher: layers of both that are to look at the same places, as conv2:conv2, or none",
         &Config::hint)
      .checked(parse_hints)
      .or_none()
      .only(kWithTeacher, kDefaultIsOff);
  t.number("hint-weight", "W", "--hint: weight of the part of the loss that compares layers (default 1)", &Config::hint_weight, 0, 1e6)
      .only(kWithHint);
  t.text("prune", "HOW",
         "the smallest weights become zero while it trains: weight:0.9 (that part of all; :uniform of each matrix), 2:4, or none",
         &Config::prune)
      .checked(parse_pruning)
      .or_none();
  t.number("prune-until", "X", "part of the steps after which no more weights are pruned (default 0.7)", &Config::prune_until, 0.01, 1)
      .only(kWithPruning);
  t.text("quantize-aware", "BITS", "layers compute with rounded weights while it trains: 8 (as int8 kernels do), 4, 4:GROUP, or none",
         &Config::quantize_aware)
      .checked(parse_quantise_aware)
      .or_none();
  t.text("plugin", "FILE.so", "loads models that a shared library registers", &Config::plugin);

  t.group("How it is split");
  t.number("workers", "N", "ranks to start on this machine (0: what the launcher started, else 1)", &Config::workers, 0, 4096);
  t.text("layout", "LAYOUT", "dp (all workers, the default), auto (measures and plans), single, or keys such as dp=2,zero=1,compress=int8",
         &Config::layout);
  t.text("backend", "NAME", "what carries the exchange: auto, shm, gloo, mpi, nccl, or shm+gloo, shm+mpi (inside + between hosts)",
         &Config::backend, {"auto", "shm", "gloo", "mpi", "nccl", "shm+gloo", "shm+mpi"})
      .only(kWithCollectives, kDefaultIsOff);
  t.text("weights", "WHERE", "auto (one copy a host where its ranks share memory) or private (one a rank)", &Config::weights,
         {"auto", "private"})
      .only(kWithSharedWeights, kDefaultIsOff);
  t.text("shares", "SHARES", "of the global batch: equal, auto (by measured speed), or one number a rank, as 3:1", &Config::shares)
      .only(kWithRanks, kDefaultIsOff);
  t.number("outer-lr", "X", "sync=diloco: rate of its outer optimizer (default 0.7)", &Config::outer_lr, 1e-6, 100).only(kWithDiloco);
  t.number("outer-momentum", "X", "sync=diloco: its Nesterov momentum (default 0.9)", &Config::outer_momentum, 0, 0.999999)
      .only(kWithDiloco);
  t.text("remedy", "rate:FACTOR", "against stale gradients: all learning rates times FACTOR", &Config::remedy)
      .only(kWithLateGradients, kDefaultIsOff);
  t.text("virtual", "SPEC",
         "workers under a simulated clock in one process: workers=64,speed=lognormal:0.3,link=1ms:1Gbit,mtbf=SECONDS,.. or none",
         &Config::virtual_time)
      .or_none();
  t.text("listen", "HOST:PORT", "sync=async, stale, queue: where `cohort join` finds this training (port 0: a free one)", &Config::listen)
      .only(kWithServer, kDefaultIsOff);
  t.flag("sync-batch-norm", "batch norm over the batches of all ranks", &Config::sync_batch_norm);
  t.text("device", "NAME", "cpu, cuda or cuda:N; or one a rank with commas, as cuda:0,cpu,cpu", &Config::device).checked(parse_devices);
  t.number("threads", "N", "compute threads of a rank (0: cores / ranks on this machine)", &Config::threads, 0, 1024);
  t.number("bucket-bytes", "N", "gradients exchanged together (0: chosen)", &Config::bucket_bytes, 0, 1e12)
      .only(kWithBuckets, kDefaultIsOff);
  t.number("timeout", "SECONDS", "the longest any exchange may take", &Config::timeout, 0.1, 86400).only(kWithRanks);
  t.number("grace", "SECONDS", "after Ctrl-C or SIGTERM ranks that were started here may finish their step for so long", &Config::grace,
           0.1, 86400)
      .only(kWithRanks);
}

void add_steps(SettingsTable& t) {
  t.group("The step");
  t.number("global-batch", "B", "samples of one optimizer step, over all ranks; auto: as --study has it", &Config::global_batch, 1, 1e9)
      .or_word("auto", &Config::global_batch, 0);
  t.text("batch-schedule", "STEP:FACTOR,..", "the batch grows: 600:4,900:16 is 4 times --global-batch after 600 steps, 16 times after 900",
         &Config::batch_schedule)
      .checked(parse_batch_schedule);
  t.text("study", "DIR", "a study with its report: its best trial's hyperparameters, and with --global-batch auto its batch size",
         &Config::study);
  t.number("accumulate", "N", "micro-steps between exchanges", &Config::accumulate, 1, 1e6);
  t.text("optimizer", "NAME", "sgd, momentum, nesterov, adam, adamw", &Config::optimizer, {"sgd", "momentum", "nesterov", "adam", "adamw"});
  t.number("lr", "X", "learning rate; auto (the default): by optimizer and model, see below", &Config::lr, 0, 1e6)
      .or_word("auto", &Config::lr, Config::kAuto);
  t.number("momentum", "X", "part of the last update that is kept (default 0.9)", &Config::momentum, 0, 0.999999).only(kWithMomentum);
  t.number("beta1", "X", "decay of the mean of gradients (default 0.9)", &Config::beta1, 0, 0.999999).only(kWithAdam);
  t.number("beta2", "X", "decay of the mean of their squares (default 0.999)", &Config::beta2, 0, 0.99999999).only(kWithAdam);
  t.number("eps", "X", "added to the root of that mean (default 1e-8)", &Config::eps, 0, 1).only(kWithAdam);
  t.text("schedule-lr", "NAME", "constant, linear, cosine", &Config::schedule_lr, {"constant", "linear", "cosine"});
  t.number("lr-end-factor", "X", "the last learning rate, as a part of --lr", &Config::lr_end_factor, 0, 1).only(kWithDecay);
  t.number("decay-steps", "N", "the decay ends N steps after the warm-up (0: with the run)", &Config::decay_steps, 0, kMany)
      .only(kWithDecay, kDefaultIsOff);
  t.number("warmup-steps", "N", "learning rate rises linearly over N steps", &Config::warmup_steps, 0, kMany);
  t.number("weight-decay", "X", "L2 term of sgd, momentum, nesterov, adam (default 0); decoupled in adamw (default 0.01)",
           &Config::weight_decay, 0, 1e3)
      .or_word("auto", &Config::weight_decay, Config::kAuto);
  t.text("loss", "NAME", "cross-entropy, mse, binary; auto (the default): the model's own, else by the data", &Config::loss,
         {"auto", "cross-entropy", "mse", "binary"});
  t.number("label-smoothing", "X", "part of each target that is spread over all classes, in training", &Config::label_smoothing, 0,
           0.999999);
  t.text("label-smoothing-over", "WHICH",
         "classes that it is spread over: all, the right one too (as PyTorch does), or others (as Shallue et al. 2019)",
         &Config::label_smoothing_over, {"all", "others"})
      .only(kWithSmoothing, kDefaultIsOff);
  t.number("clip-norm", "X", "largest global norm of the gradient (0: no clipping)", &Config::clip_norm, 0, 1e12);
  t.text("precision", "NAME", "of the arithmetic: fp32, bf16, fp16; weights stay fp32", &Config::precision, {"fp32", "bf16", "fp16"});
  t.number("loss-scale", "X", "a fixed one; 0: dynamic", &Config::loss_scale, 0, 1e30).only(kWithFp16, kDefaultIsOff);

  t.group("How long, and what is kept");
  t.number("steps", "N", "optimizer steps", &Config::steps, 0, kMany);
  t.number("epochs", "X", "passes over the data, where --steps is not given (0: one)", &Config::epochs, 0, 1e9);
  t.text("metrics", "NAME,..", "what else evaluations tell: top5-error, balanced-error, f1, perplexity; of numbers mae, r2; or your own",
         &Config::metrics);
  t.text("goal", "EXPR", "stop when an evaluation reaches it, e.g. 'val_error<0.12'", &Config::goal);
  t.number("patience", "N", "stop after N evaluations without a lower validation loss; a lower one is saved in any case (0: never)",
           &Config::patience, 0, kMany);
  t.number("eval-every", "N", "steps between evaluations (0: once an epoch)", &Config::eval_every, 0, kMany);
  t.number("checkpoint-every", "N", "steps between checkpoints (0: at every evaluation; end: at the end alone)", &Config::checkpoint_every,
           0, kMany)
      .or_word("end", &Config::checkpoint_every, -1);
  t.number("keep-checkpoints", "N", "how many of the newest are kept", &Config::keep_checkpoints, 2, 1e6).only(kRemovingCheckpoints);
  add_auto(t.flag("resume",
                  "go on from the newest checkpoint of --run; auto: begin where there is none yet, and where the run is done say so: one "
                  "command for the first start and each restart",
                  &Config::resume)
               .only(kWithRun, kDefaultIsOff)
               .setting);
  t.text("run", "DIR", "run folder (default: runs/MODEL-DATE-TIME)", &Config::run);

  t.group("Other");
  t.number("seed", "S", "of weights, data order and dropout", &Config::seed, 0, 9e15);
  t.number("memory-limit", "BYTES", "memory that the tensors of a rank may take; 0: no limit", &Config::memory_limit, 0, 1e15);
  t.text("inject", "FAULT", "slow:RANK:FACTOR, pause:RANK:SECONDS, kill:RANK:STEP; several with commas", &Config::inject);
  t.text("prompt", "TEXT", "how the text sample at the end begins", &Config::prompt).only(kForSamples, kDefaultIsOff);
  t.number("sample-bytes", "N", "length of the text sample at the end", &Config::sample_bytes, 0, 1e6).only(kForText, "0");
  t.number("noise-scale", "N", "every N steps the gradient noise scale is measured (0: never); needs workers or --accumulate",
           &Config::noise_scale, 0, kMany)
      .only(kWithTwoBatchSizes, kDefaultIsOff);
  t.number("log-every", "N", "steps between lines of metrics", &Config::log_every, 1, kMany);
  t.number("serve", "[PORT]", "live report in a browser on this host (0: a free port)", &Config::serve, 0, 65535)
      .or_word("none", &Config::serve, Config::kNotServed);
  t.flag("json", "stdout carries one JSON object a line and nothing else", &Config::json);
  t.flag("quiet", "no progress bar", &Config::quiet);
}

/// Every setter also notes that the setting was given.
const std::vector<SettingsRow>& rows() {
  static const std::vector<SettingsRow> all = [] {
    std::vector<SettingsRow> made;
    SettingsTable table(made);
    add_workers(table);
    add_steps(table);
    for (auto& [setting, condition, neutral] : made) {
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
  return all;
}

}  // namespace

const std::vector<Setting>& settings() {
  static const std::vector<Setting> table = [] {
    std::vector<Setting> out;
    for (const SettingsRow& row : rows()) out.push_back(row.setting);
    return out;
  }();
  return table;
}

const std::vector<OptionRule>& option_rules() {
  static const std::vector<OptionRule> table = [] {
    std::vector<OptionRule> out;
    for (const SettingsRow& row : rows()) out.push_back({row.condition, row.setting.name, row.neutral_value});
    return out;
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
