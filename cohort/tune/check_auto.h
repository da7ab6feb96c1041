#pragma once
// What --layout auto can refuse before it measures: one line, and no seconds spent.

#include <optional>

#include "cohort/data/source/source.h"
#include "cohort/job/job.h"

namespace cohort {

/// Error(kBadInput) where a configuration is refused with every kind of layout that may be chosen for `num_ranks` ranks: one process (where
/// fewer ranks may be taken), data parallelism, ZeRO, a pipeline, divided layers. It is what data parallelism is refused for.
void check_any_layout(const Config& config, int num_ranks, bool may_be_fewer, std::optional<bool> is_text);

/// Error(kBadInput) for what the model cannot do in any layout, as a run would say it; Error(kInfeasible) where its weights and gradients
/// are more than --memory-limit even in equal parts on all ranks. The model is built: with `forks` in a process of its own, which leaves
/// this one with its one thread, and which says on stderr what is wrong; the Error has no text then.
void check_model_for_auto(const Job& job, const DataSet& data, int num_ranks, bool forks);

}  // namespace cohort
