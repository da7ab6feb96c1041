#pragma once
// Settings that contradict each other or would be ignored, found before any rank is started: one line and not one a rank.

#include <cstdint>
#include <optional>
#include <string>

#include "cohort/data/sampler.h"
#include "cohort/data/source/source.h"
#include "cohort/job/job.h"

namespace cohort {

class LayerGraph;

/// Error(kBadInput). What depends on the model or the machine is found by the ranks. `is_text`: the kind of data; empty: not known yet.
void check_run(const Job& job, std::optional<bool> is_text);
/// Error(kBadInput) for a batch of more samples than there are, a limit of memory that not one of them fits into, and a fault in a step
/// that never comes.
void check_data(const Job& job, const DataSet& data);
/// Both, and check_config(), once the data are open: the last check before a training begins.
void check_job(const Job& job, const DataSet& data);

/// Error(kBadInput) for what this model cannot do: training without a weight, stages of one layer, and options of a loss that it does not
/// have.
void check_model(const Config& config, const Layout& layout, const LayerGraph& model);
/// Error(kBadInput) for a goal of the error of a model whose output is no scores of classes; runs such a model once.
void check_goal(const Job& job, LayerGraph& model, const DataSource& validation);

/// Which samples each step of a run has; of its sizes alone where nobody asks for indices.
Sampler sampler_of_run(const Job& job, int64_t num_samples);
/// Optimizer steps that the job asks for; of epochs, up to the next exchange of workers that train by themselves in between.
int64_t steps_of_run(const Job& job, int64_t num_samples);
/// Where epochs alone would be fewer steps than steps_of_run(); else "".
std::string rounded_steps_sentence(const Job& job, int64_t num_samples);
/// The same of any number of steps.
int64_t up_to_exchange(const Job& job, int64_t steps);

}  // namespace cohort
