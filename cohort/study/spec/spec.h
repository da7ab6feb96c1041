#pragma once
// SPEC.toml: what a study is asked to do. docs/formats/study_spec.md has every key.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/study/spec/data.h"
#include "cohort/study/spec/metaparameter.h"

namespace cohort::study {

/// One batch size with what the spec says of it (its own budget, trials or space override the study's).
struct BatchSpec {
  int64_t batch_size = 0;
  int64_t num_trials = 0;
  int64_t train_steps = 0;
  SearchSpace space;
};

struct StudySpec {
  // [workload]
  std::string name;                       ///< Of the study: letters, digits, - and _.
  std::string data;                       ///< As `train --data`, or `noisy-quadratic[:key=value,...]`, which needs no model.
  std::string synthetic;                  ///< Stand-in of the same shape: a `synthetic:` specification, for --synthetic. May be empty.
  std::string model;                      ///< As `train --model`.
  std::string optimizer;                  ///< sgd, momentum, nesterov, adam, adamw.
  std::string dataset_name, model_name;   ///< Folder names in an archive; made from data and model where not given.
  int64_t context = 64, val_samples = 0;  ///< As in train.
  int64_t image_size = 0;                 ///< As in train: pictures of files are read so many pixels wide and high; 0: as they are.
  int64_t train_samples = 0;              ///< > 0: only the first N samples train (subsets of the data).
  double weight_decay = 0;
  std::string label_smoothing_over = "all";  ///< As in train.
  // [study]
  std::vector<GoalSpec> goals;     ///< At least one. Censoring watches the strictest of each metric.
  std::vector<BatchSpec> batches;  ///< Sizes rise.
  uint64_t seed = 1;  ///< Of the points; trial i starts from weights and data order of (seed, i), the same at every batch size.
  double evaluation_ratio = 1.05;  ///< Next evaluated step = ceil(ratio x step), at least step + 1.
  bool evaluate_train = false;     ///< Also on as many training samples as there are for validation.
  bool evaluate_test = false;      ///< Also on the test split, wherever a metric of validation is better than ever before in the trial.
  int64_t max_draws_factor = 10;   ///< Points drawn at most: this x trials (a space in which everything diverges must end).
  double diverged_above = 1e4;     ///< A training loss (nats) above this, or one that is not finite, ends a trial as infeasible.
  // [censoring]
  bool censor = true;
  double censor_margin = 1.0;  ///< A trial may run to this x the best steps of trials with lower ids.
  bool halving = false;        ///< Successive halving: biased, says so.
  // [machine]
  int64_t max_batch_per_worker = 8192;  ///< A larger batch is divided over several workers where there are several.
  int64_t max_microbatch = 0;           ///< > 0: a worker computes at most N samples at once and adds the gradients up.
  std::vector<std::string> unknown;     ///< What a published spec's authors did not say, as sentences; printed by --dry-run.

  bool is_noisy_quadratic() const { return data == "noisy-quadratic" || data.starts_with("noisy-quadratic:"); }
};

/// Names that a trial knows: learning_rate (always searched or fixed), momentum, beta1, beta2, epsilon, weight_decay, label_smoothing,
/// decay_steps (linear decay to learning_rate x end_factor over that number of steps; absent or 0: constant), decay_fraction (the same as a
/// part of the budget), end_factor, warmup_steps, average_decay (evaluations are of the weights' exponential moving average; 0: of the
/// weights).
const std::vector<std::string>& trial_parameters();

bool is_whole_parameter(const std::string& name);  ///< Counts steps. Error(kBadInput) for an unknown name.

/// What read_spec checks of a spec, for specs that were made or changed in code. Error(kBadInput) with what is wrong.
void check_spec(const StudySpec& spec);
/// Its parts: one metaparameter (its name, its optimizer, its range), the space of one batch size, a goal (that the study measures).
void check_trial_parameter(const StudySpec& spec, const Metaparameter& parameter);
void check_space(const StudySpec& spec, const SearchSpace& space);
void check_goal(const StudySpec& spec, const GoalSpec& goal);

/// Metaparameters of a space come in the order of trial_parameters(), whatever the order in the file. Error(kBadInput) with file, line and
/// what is wrong: unknown keys (with the nearest known), wrong types, missing keys, a metaparameter that the optimizer does not have, batch
/// sizes that do not rise, goals that are none.
StudySpec read_spec(const std::string& path);
StudySpec parse_spec(const std::string& toml, const std::string& name_in_errors);
/// What read_spec reads back to the same value.
std::string to_toml(const StudySpec& spec);
/// What decides a trial's result, as one line of text: two specs with the same one can go on from each other's store. The budget of a batch
/// size may grow (not where decay_fraction is searched: it would change each trial), goals may be added, batch sizes be added or left out,
/// and trials be more or fewer; anything else that changed is named by explain_difference. So a study can go on exactly where that returns
/// "", though the fingerprints differ. Names, `unknown`, [machine] and max_draws_factor decide no result and are not in it.
std::string fingerprint(const StudySpec& spec);
/// One sentence, or "". Error(kBadInput) where the first is no fingerprint.
std::string explain_difference(const std::string& fingerprint_of_store, const std::string& fingerprint_now);
/// What a store was asked for in all, when a run of `now` goes on with a store of `before`: as `now`, with the batch sizes that it leaves
/// out, and the larger numbers of trials. For specs between which explain_difference finds nothing.
StudySpec merge_specs(const StudySpec& before, StudySpec now);

/// Steps at which a trial is evaluated: 0, 1, ... up to and including `train_steps`, each ceil(ratio x the one before), at least one more.
/// Error(kBadInput) above a million of them.
std::vector<int64_t> evaluation_steps(double ratio, int64_t train_steps);

/// Of weights, data order and dropout of trial `id`, the same at every batch size; small enough for `train --seed`.
uint64_t seed_of_trial(const StudySpec& spec, int64_t id);

/// The point of trial `id` at this batch size. Each name of trial_parameters() has its own dimension of the Halton sequence of spec.seed,
/// so the units are the same at every batch size, whatever else is searched there.
Parameters parameters_of_trial(const StudySpec& spec, const BatchSpec& batch, int64_t id);

/// A number as specs and fingerprints have it: the shortest text that reads back as the same double: 0.1, 1e-05, 3.
std::string number_text(double value);

}  // namespace cohort::study
