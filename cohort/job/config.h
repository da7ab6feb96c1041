#pragma once
// The configuration of a run: the merged settings of `cohort train [config.toml] [--option value ...]`. One table of settings serves the
// command line, the file and the copy in the run folder. Torch-free.

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cohort/base/export.h"

namespace cohort {

struct Config {
  static constexpr double kAuto = -1;  ///< Chosen by optimizer and model (learning_rate.h).
  static constexpr int64_t kAll = -1;
  static constexpr int kNotServed = -1;

  std::string model = "cnn";
  std::string data = "fashion-mnist";
  int64_t context = 64;                  ///< Bytes of one text sample.
  int64_t image_size = 0;                ///< Side in pixels that picture files are resized to; 0: unchanged.
  int64_t val_samples = 0;               ///< 0: the data set's own rule.
  bool skip_bad = false;                 ///< Skip and count unreadable pictures and rows.
  std::string augment = "none";          ///< Training pictures: none, crop, flip, or both (augment.h).
  std::string init_from;                 ///< Run, checkpoint or safetensors file with initial weights; empty: random.
  std::string freeze;                    ///< Patterns of names of tensors that are not trained, joined by ','.
  std::string teacher;                   ///< Run, checkpoint, exported or compressed file to distil from; empty: none.
  double temperature = 1;                ///< Softmax temperature of the distillation loss (distillation.h),
  double alpha = 0.5;                    ///< and the weight of that loss.
  std::string teacher_answers = "auto";  ///< auto, cached, live, beside or asked (teacher.h).
  std::string hint;                      ///< Pairs of student and teacher layers to compare: conv2:conv2,.. (small_specs.h),
  double hint_weight = 1;                ///< and the weight of that loss.
  std::string prune;                     ///< weight:SPARSITY or 2:4 (pruning.h); empty: no pruning.
  double prune_until = 0.7;              ///< Fraction of the steps after which pruning stops.
  std::string quantize_aware;            ///< Bits of quantization-aware training (small_specs.h); empty: none.
  int workers = 0;                       ///< 0: as many as the launcher started, else 1.
  std::string layout = "dp";
  std::string backend = "auto";
  std::string device = "cpu";  ///< For all ranks, or one per rank (devices.h).
  int threads = 0;             ///< Compute threads per rank; 0: cores / local ranks.
  int64_t global_batch = 128;  ///< 0: auto, from `study`; replaced before train().
  std::string batch_schedule;  ///< See parse_batch_schedule.
  std::string study;           ///< Batch-size study with batch and hyperparameters; replaced before train().
  int64_t steps = 0;
  double epochs = 0;  ///< Used where steps is 0; both 0: one epoch.
  int accumulate = 1;
  std::string optimizer = "sgd";
  double lr = kAuto;  ///< kAuto: default_learning_rate().
  double momentum = 0.9;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  std::string schedule_lr = "constant";
  double lr_end_factor = 0.0;  ///< Linear and cosine end at lr x this.
  int64_t decay_steps = 0;     ///< Steps from the warm-up to the end of linear and cosine; 0: to the end of the run.
  int64_t warmup_steps = 0;
  double weight_decay = kAuto;               ///< kAuto: default_weight_decay().
  double clip_norm = 0.0;                    ///< 0: no clipping.
  std::string loss = "auto";                 ///< Name (named_losses.h); auto: the model's own, else by the data.
  double label_smoothing = 0.0;              ///< In training only.
  std::string label_smoothing_over = "all";  ///< all or others (small_specs.h).
  std::string precision = "fp32";
  double loss_scale = 0;         ///< fp16: fixed loss scale; 0: dynamic.
  std::string weights = "auto";  ///< auto: one copy per host where its ranks share memory; private: one per rank.
  std::string shares = "equal";  ///< Of the global batch per rank: equal, auto (by measured speed) or 3:1:...
  bool sync_batch_norm = false;
  double outer_lr = 0.7, outer_momentum = 0.9;  ///< sync=diloco: outer optimizer.
  std::string listen;                           ///< HOST:PORT where workers may join; "": nowhere.
  std::string remedy;                           ///< sync=async and stale: against stale gradients (small_specs.h).
  std::string virtual_time;                     ///< Simulated workers (virtual_spec.h); empty: real ones.
  double timeout = 60.0;                        ///< Seconds that any exchange may take.
  double grace = 30.0;                          ///< Seconds that ranks may take to stop, besides saving.
  std::string inject;                           ///< Injected faults (injected_faults.h).
  int64_t bucket_bytes = 0;                     ///< 0: the default of DataParallel.
  int64_t memory_limit = 0;
  uint64_t seed = 1;
  std::string goal;
  std::string metrics;           ///< Further metrics of evaluations, joined by ',' (metrics.h).
  int64_t patience = 0;          ///< Evaluations without a lower validation loss before stopping; 0: never.
  int64_t test_samples = kAll;   ///< Samples of the test set to evaluate at the end.
  int64_t eval_every = 0;        ///< 0: once per epoch, and at the end.
  int64_t checkpoint_every = 0;  ///< 0: at every evaluation; -1: at the end only.
  int64_t keep_checkpoints = 2;
  int64_t noise_scale = 0;  ///< Steps between measurements of the gradient noise scale; 0: never.
  int64_t log_every = 1;    ///< Step lines of metrics.jsonl and --json.
  bool resume = false;
  bool resume_auto = false;  ///< Resume if `run` has a checkpoint, else begin; `resume` is false then.
  std::string run;           ///< Folder; empty: runs/MODEL-DATE-TIME.
  std::string plugin;
  std::string prompt;          ///< Text data: prompt of the sample at the end; empty: first bytes of the validation text.
  int64_t sample_bytes = 400;  ///< Text data: length of the sample at the end; 0: none.
  bool json = false;
  bool quiet = false;
  int serve = kNotServed;  ///< Port of the live report; 0: a free one.

  /// Settings that were given with any value; Setting::set inserts them. For a program that sets members, a value other than the default
  /// counts as given.
  std::set<std::string> given;
  std::string taken_from;  ///< The study that values were taken from, noted in config.toml.
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
/// Whether it was given, or differs from the default.
COHORT_API bool is_given(const Config& config, const Setting& setting);

/// Reads a TOML file into `config`. Error(kBadInput) with file and line for unknown keys, invalid values and duplicates, and for a
/// truncated file of whole_toml().
COHORT_API void read_config_file(const std::string& path, Config& config);
/// The same for a text; messages call it `name`.
COHORT_API void read_config_text(const std::string& text, const std::string& name, Config& config);
/// TOML for read_config_file with all settings that have an effect (option_rules.h) or were given.
COHORT_API std::string to_toml(const Config& config);
/// to_toml() between two marker lines, because TOML that is truncated at a line end is still valid.
COHORT_API std::string whole_toml(const Config& config);
/// Checks each setting, and combinations of settings. Error(kBadInput).
COHORT_API void check_config(const Config& config);

}  // namespace cohort
