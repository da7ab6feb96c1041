#pragma once
// The configuration of a run: what `cohort train [config.toml] [--option value ...]` says, merged. One table of settings serves the command
// line, the file and the copy written to the run folder. Torch-free.

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cohort/base/export.h"

namespace cohort {

struct Config {
  static constexpr double kAuto = -1;  ///< Chosen by a table (update_rule.h).
  static constexpr int64_t kAll = -1;  ///< All that there are.
  static constexpr int kNotServed = -1;

  std::string model = "cnn";
  std::string data = "fashion-mnist";
  int64_t context = 64;                  ///< Bytes of one text sample.
  int64_t image_size = 0;                ///< Pixels a side that pictures of files are resized to; 0: as they are.
  int64_t val_samples = 0;               ///< 0: the data set's own rule.
  bool skip_bad = false;                 ///< Pictures and rows that cannot be read are left out and counted.
  std::string augment = "none";          ///< Of the training's pictures: none, crop, flip, or both (augment.h).
  std::string init_from;                 ///< A run, checkpoint or safetensors file whose weights it begins with; empty: new ones.
  std::string freeze;                    ///< Patterns of tensors' names that are not trained, joined by ','.
  std::string teacher;                   ///< A run, checkpoint, exported or compressed file whose scores are learnt from; empty: none.
  double temperature = 1;                ///< Of the softmax of both in the soft part of the loss (distillation.h),
  double alpha = 0.5;                    ///< and that part's weight.
  std::string teacher_answers = "auto";  ///< Where they come from: auto, cached, live, beside or asked (teacher.h).
  std::string hint;            ///< Layers whose outputs are compared with the teacher's: conv2:conv2,.. (small_specs.h); empty: none,
  double hint_weight = 1;      ///< and the weight of that part of the loss.
  std::string prune;           ///< Weights become zero while it trains: weight:SPARSITY or 2:4 (pruning.h); empty: none do.
  double prune_until = 0.7;    ///< Part of the steps after which none become zero any more.
  std::string quantize_aware;  ///< Layers compute with weights of few bits while it trains (small_specs.h); empty: exactly.
  int workers = 0;             ///< 0: what the launcher started, else 1.
  std::string layout = "dp";
  std::string backend = "auto";
  std::string device = "cpu";  ///< Of all ranks, or one a rank: devices.h.
  int threads = 0;             ///< Compute threads a rank; 0: cores / local ranks.
  int64_t global_batch = 128;  ///< 0: auto, from `study`; train() never sees it.
  std::string batch_schedule;  ///< As parse_batch_schedule reads it.
  std::string study;           ///< Folder of the batch-size study to take batch and metaparameters from; train() never sees it.
  int64_t steps = 0;
  double epochs = 0;  ///< Used where steps is 0; both 0: one epoch.
  int accumulate = 1;
  std::string optimizer = "sgd";
  double lr = kAuto;  ///< Auto: default_learning_rate of optimizer and model.
  double momentum = 0.9;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  std::string schedule_lr = "constant";
  double lr_end_factor = 0.0;  ///< Linear and cosine end at lr x this.
  int64_t decay_steps = 0;     ///< Steps from the warm-up to the end of linear and cosine; 0: to the end of the run.
  int64_t warmup_steps = 0;
  double weight_decay = kAuto;               ///< Auto: default_weight_decay of the optimizer.
  double clip_norm = 0.0;                    ///< 0: no clipping.
  std::string loss = "auto";                 ///< By name (named_losses.h); auto: the model's own, else by the data's kind.
  double label_smoothing = 0.0;              ///< Of the training loss; evaluation is unsmoothed.
  std::string label_smoothing_over = "all";  ///< Classes that get it: all or others (small_specs.h).
  std::string precision = "fp32";
  double loss_scale = 0;         ///< fp16: fixed loss scale; 0: dynamic.
  std::string weights = "auto";  ///< auto: one copy a host where its ranks share memory; private: one a rank.
  std::string shares = "equal";  ///< Of the global batch: equal, auto (by measured speed) or 3:1:...
  bool sync_batch_norm = false;
  double outer_lr = 0.7, outer_momentum = 0.9;  ///< sync=diloco: of the optimizer on the averaged change.
  std::string listen;                           ///< HOST:PORT where workers may join; "": none may.
  std::string remedy;                           ///< sync=async and stale: against stale gradients (sync_mode.h).
  std::string virtual_time;                     ///< Workers under a simulated clock (virtual_spec.h); empty: real ones.
  double timeout = 60.0;                        ///< Seconds any exchange may take.
  double grace = 30.0;                          ///< Seconds that ranks may take to stop, besides what saving takes.
  std::string inject;                           ///< slow:RANK:FACTOR, pause:RANK:SECONDS, kill:RANK:STEP; several joined by ','.
  int64_t bucket_bytes = 0;                     ///< 0: the default of DataParallel.
  int64_t memory_limit = 0;
  uint64_t seed = 1;
  std::string goal;
  std::string metrics;           ///< What else evaluations tell, joined by ',' (metrics.h).
  int64_t patience = 0;          ///< Evaluations without a lower validation loss after which it ends; 0: no end.
  int64_t test_samples = kAll;   ///< Of the test set, that are evaluated at the end.
  int64_t eval_every = 0;        ///< 0: once an epoch, and at the end.
  int64_t checkpoint_every = 0;  ///< 0: at every evaluation; -1: at the end alone.
  int64_t keep_checkpoints = 2;
  int64_t noise_scale = 0;  ///< Steps between measurements of the gradient noise scale; 0: never.
  int64_t log_every = 1;    ///< Step lines of metrics.jsonl and --json.
  bool resume = false;
  bool resume_auto = false;  ///< Goes on where `run` has saved a checkpoint, and begins where it has not; then `resume` is false.
  std::string run;           ///< Folder; empty: runs/MODEL-DATE-TIME.
  std::string plugin;
  std::string prompt;          ///< Text data: how the sample at the end begins; empty: the first bytes of the validation text.
  int64_t sample_bytes = 400;  ///< Text data: length of the sample at the end, 0 for none.
  bool json = false;
  bool quiet = false;
  int serve = kNotServed;  ///< Port of the live report; 0: a free one.

  /// Settings that somebody named, at whatever value: Setting::set puts them in. A program that fills the members need not: there a value
  /// other than the default counts as given.
  std::set<std::string> given;
  std::string taken_from;  ///< The study that numbers above were taken from: a note for config.toml.
};

/// One setting: `--name value` and `name = value` (dashes or underscores in the file).
struct Setting {
  std::string name, value_name, help;
  std::string group;  ///< Heading in the help.
  bool is_flag = false;
  std::function<void(Config&, const std::string&)> set;      ///< Error(kBadInput) with the setting's name and the bad value.
  std::function<std::string(const Config&)> get;             ///< As TOML: strings quoted.
  std::function<void(Config& to, const Config& from)> copy;  ///< The value, and whether it was given.
};
COHORT_API const std::vector<Setting>& settings();
COHORT_API const Setting* find_setting(const std::string& name);
/// Named by somebody, or other than the default.
COHORT_API bool is_given(const Config& config, const Setting& setting);

/// Reads a TOML file into `config`. Unknown keys, wrong values, one setting twice: Error(kBadInput) with file and line; also for a file
/// that was written as whole_toml() and has lost its end.
COHORT_API void read_config_file(const std::string& path, Config& config);
/// The same of a text, which messages call `name`.
COHORT_API void read_config_text(const std::string& text, const std::string& name, Config& config);
/// The configuration as TOML, readable by read_config_file: all that means something in it (option_rules.h), and what was given.
COHORT_API std::string to_toml(const Config& config);
/// The same between a first and a last line that show whether all of it is there: TOML that is cut at a line's end is TOML still.
COHORT_API std::string whole_toml(const Config& config);
/// Checks that need several settings at once. Error(kBadInput).
COHORT_API void check_config(const Config& config);

}  // namespace cohort
