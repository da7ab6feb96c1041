#pragma once
// `train --study DIR`: the metaparameters of the trial that got to the study's goal first at this batch size; with `--global-batch auto`
// also the batch size, the one that brings this number of workers there soonest. docs/guide/worth.md.

#include <functional>
#include <string>

#include "cohort/job/config.h"
#include "cohort/job/layout.h"

namespace cohort {

struct AutoBatch {
  Config config;         ///< What was asked for with the chosen numbers in place.
  std::string sentence;  ///< Why: steps x step time, what other batch sizes would take, whose metaparameters.
};

/// Reads study.toml, steps_curve.csv and, where global_batch is 0 (auto), step_times.csv of `config.study`. `was_given` says whether a
/// setting was an option of the command; a value that differs from the default (in a file) counts as given too. Given model, data,
/// optimizer, context and validation samples must be the study's; other given settings (learning rate, goal, steps, threads, ...) win over
/// it. Left to it: --goal is the study's, --steps the trial's budget, --eval-every a twentieth of the expected steps, --threads what step
/// times were measured with, 1, --seed the trial's. No weights, no ranks. Error(kBadInput) that says what to run where a file or the number
/// of workers is missing, and what contradicts what.
///
/// A batch size past the curve's flat point (study/goal_curve.h) is not chosen by auto. Where there is no steps_curve.csv yet, the
/// study's store at its first goal counts. `accumulate` stays where the layout says it, or is no data parallelism.
AutoBatch resolve_auto_batch(const Config& config, const std::function<bool(const std::string& setting)>& was_given, const Layout& layout);

/// What a plan for the time to the goal of `config.study` measures: `config` with model, data, optimizer, context and validation samples of
/// the study, and one thread. Errors as above.
Config workload_of_study(const Config& config, const std::function<bool(const std::string& setting)>& was_given);

}  // namespace cohort
