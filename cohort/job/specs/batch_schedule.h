#pragma once
// `--batch-schedule`: a batch that grows while a run trains, in place of a learning rate that falls (Smith, Kindermans, Ying and Le 2018,
// "Don't decay the learning rate, increase the batch size", section 3: the noise of SGD is proportional to rate / batch, so either anneals
// it, and the larger batch takes fewer updates). Where we differ: a grown step is F times as many micro-batches of the same size, so
// neither memory nor what a batch norm averages over grows with it. Torch-free.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/job/specs/batch_stage.h"

namespace cohort {

/// "600:4,900:16": after 600 updates 4 times the batch, after 900 16 times. "": no stages. Steps rise from 1 on, factors are from 1 to
/// 65,536, and each differs from the one before. Error(kBadInput), which names --batch-schedule, for anything else.
std::vector<BatchStage> parse_batch_schedule(const std::string& text);
/// The reverse of parse_batch_schedule(), for stages that begin before `end_step`.
std::string batch_schedule_text(const std::vector<BatchStage>& stages, int64_t end_step);

/// The factor at a step; 1 before the first stage.
int64_t batch_factor_at(const std::vector<BatchStage>& stages, int64_t step);
/// Samples of the first `steps` steps in multiples of --global-batch.
double batches_before(const std::vector<BatchStage>& stages, double steps);
int64_t largest_batch_factor(const std::vector<BatchStage>& stages);

}  // namespace cohort
