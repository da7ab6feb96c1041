#pragma once
// Checks of a job before its ranks are started, so that an error is reported once: settings that contradict each other or would be ignored.

#include <cstdint>
#include <optional>
#include <string>

#include "cohort/data/sampler.h"
#include "cohort/data/source/source.h"
#include "cohort/job/job.h"

namespace cohort {

class LayerGraph;

/// Error(kBadInput). The ranks check what depends on the model or the machine. `is_text`: the kind of data; empty: unknown.
void check_run(const Job& job, std::optional<bool> is_text);
/// Error(kBadInput) for settings that do not fit the data, such as a batch of more samples than there are.
void check_data(const Job& job, const DataSet& data);
/// Both, and check_config(), once the data are open: the last check before a training begins.
void check_job(const Job& job, const DataSet& data);

/// Error(kBadInput) for a model without trained weights, stages of a single layer, and options of a loss that it does not have.
void check_model(const Config& config, const Layout& layout, const LayerGraph& model);
/// Error(kBadInput) for a goal or metric that needs scores, with a model that does not output them; runs such a model once.
void check_goal(const Job& job, LayerGraph& model, const DataSource& validation);

/// The sampler of a run; cheap if only sizes are read.
Sampler run_sampler(const Job& job, int64_t num_samples);
/// The optimizer steps of a run: --steps, or those of --epochs rounded up to an exchange of local steps.
int64_t num_run_steps(const Job& job, int64_t num_samples);
/// A note if num_run_steps() was rounded up; else "".
std::string rounded_steps_sentence(const Job& job, int64_t num_samples);
/// Rounds up to a multiple of the steps between exchanges.
int64_t round_up_to_exchange(const Job& job, int64_t steps);

}  // namespace cohort
