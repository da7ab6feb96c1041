#pragma once
// The specification of a study, SPEC.toml. All keys: docs/formats/study_spec.md.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/study/spec/data.h"
#include "cohort/study/spec/hyperparameter.h"

namespace cohort::study {

/// One batch size with its budget, number of trials and space (its own ones, or those of the study).
struct BatchSpec {
  int64_t batch_size = 0;
  int64_t num_trials = 0;
  int64_t train_steps = 0;
  SearchSpace space;
};

struct StudySpec {
  // [workload]
  std::string name;                       ///< Name of the study: letters, digits, - and _.
  std::string data;                       ///< As `train --data`, or `noisy-quadratic[:key=value,...]`, which needs no model.
  std::string synthetic;                  ///< A `synthetic:` specification of the same shape, used with --synthetic. May be empty.
  std::string model;                      ///< As `train --model`.
  std::string optimizer;                  ///< sgd, momentum, nesterov, adam, adamw.
  std::string dataset_name, model_name;   ///< Folder names in an archive; derived from data and model where not given.
  int64_t context = 64, val_samples = 0;  ///< As in train.
  int64_t image_size = 0;                 ///< As in train: image files are resized to this width and height in pixels; 0: not resized.
  int64_t train_samples = 0;              ///< > 0: only the first N samples train (subsets of the data).
  double weight_decay = 0;
  std::string label_smoothing_over = "all";  ///< As in train.
  // [study]
  std::vector<GoalSpec> goals;     ///< At least one. Censoring watches the strictest of each metric.
  std::vector<BatchSpec> batches;  ///< In increasing order of sizes.
  uint64_t seed = 1;               ///< Seed of the points; weights and data order of trial i depend on (seed, i) alone.
  double evaluation_ratio = 1.05;  ///< Next evaluated step = ceil(ratio x step), at least step + 1.
  bool evaluate_train = false;     ///< Also on as many training samples as there are for validation.
  bool evaluate_test = false;      ///< Also on the test split, wherever a validation metric is better than ever before in the trial.
  int64_t max_draws_factor = 10;   ///< At most this x trials points are drawn, so that a space in which everything diverges ends.
  double diverged_above = 1e4;     ///< A training loss (nats) above this, or one that is not finite, ends a trial as infeasible.
  // [censoring]
  bool censor = true;
  double censor_margin = 1.0;  ///< A trial may run to this x the best steps of trials with lower ids.
  bool halving = false;        ///< Successive halving; biased.
  // [machine]
  int64_t max_batch_per_worker = 8192;  ///< A larger batch is divided over several workers where there are several.
  int64_t max_microbatch = 0;           ///< > 0: a worker computes at most N samples at once and accumulates gradients.
  std::vector<std::string> unknown;     ///< Sentences on what the authors of a published spec left open; printed by --dry-run.

  bool is_noisy_quadratic() const { return data == "noisy-quadratic" || data.starts_with("noisy-quadratic:"); }
};

/// Names of hyperparameters: learning_rate (always searched or fixed), momentum, beta1, beta2, epsilon, weight_decay, label_smoothing,
/// decay_steps (linear decay to learning_rate x end_factor over that number of steps; absent or 0: constant), decay_fraction (the same as a
/// part of the budget), end_factor, warmup_steps, average_decay (evaluations are of the weights' exponential moving average; 0: of the
/// weights).
const std::vector<std::string>& trial_parameters();

bool is_whole_parameter(const std::string& name);  ///< Whether it counts steps. Error(kBadInput) for an unknown name.

/// The checks of read_spec(), for specs that are made or changed in code. Error(kBadInput) with the problem.
void check_spec(const StudySpec& spec);
/// Parts of check_spec(): one hyperparameter (its name, its optimizer, its range), the space of one batch size, a goal (that the study
/// measures).
void check_trial_parameter(const StudySpec& spec, const Hyperparameter& parameter);
void check_space(const StudySpec& spec, const SearchSpace& space);
void check_goal(const StudySpec& spec, const GoalSpec& goal);

/// Hyperparameters of a space are in the order of trial_parameters(), whatever the order in the file. Error(kBadInput) with file, line and
/// problem: unknown keys (with the nearest known), wrong types, missing keys, a hyperparameter that the optimizer does not have, batch
/// sizes that do not increase, invalid goals.
StudySpec read_spec(const std::string& path);
StudySpec parse_spec(const std::string& toml, const std::string& name_in_errors);
/// read_spec() reads the text back to the same value.
std::string to_toml(const StudySpec& spec);
/// The value of one key of [search]: a number, or an inline table.
std::string to_toml(const Hyperparameter& parameter);
/// The settings that determine a trial's result, as one line of text. A study can continue with another spec exactly where
/// explain_difference() returns "": the budget of a batch size may grow (not where decay_fraction is searched, which would change each
/// trial), goals may be added, batch sizes added or omitted, and the number of trials changed. Names, `unknown`, [machine] and
/// max_draws_factor affect no result and are not included.
std::string fingerprint(const StudySpec& spec);
/// One sentence, or "". Error(kBadInput) where the first is not a fingerprint.
std::string explain_difference(const std::string& fingerprint_of_store, const std::string& fingerprint_now);
/// The spec of a store of `before` that is continued with `now`: `now` with the batch sizes that it omits, and the larger numbers of
/// trials. Requires that explain_difference() finds nothing.
StudySpec merge_specs(const StudySpec& before, StudySpec now);

/// Steps at which a trial is evaluated: 0, 1, ... up to and including `train_steps`, each ceil(ratio x the one before), at least one more.
/// Error(kBadInput) above a million of them.
std::vector<int64_t> evaluation_steps(double ratio, int64_t train_steps);

/// Seed of weights, data order and dropout of trial `id`, the same at every batch size; small enough for `train --seed`.
uint64_t seed_of_trial(const StudySpec& spec, int64_t id);

/// The point of trial `id` at this batch size. Each name of trial_parameters() has its own dimension of the Halton sequence of spec.seed,
/// so the units are the same at every batch size, whatever else is searched there.
Parameters parameters_of_trial(const StudySpec& spec, const BatchSpec& batch, int64_t id);

}  // namespace cohort::study
