#pragma once
// What a run is, and what each of its ranks has and did, as lines of metrics.jsonl.

#include "cohort/record/end_records.h"
#include "cohort/record/start_records.h"
#include "cohort/train/run_setup.h"

namespace cohort {

StartRecord start_record(const RunSetup& run);

/// Of this rank: `totals`, its samples and seconds, with its place, its memory and its part of the model.
RankRecord rank_record(const RunSetup& run, const RankRecord& totals);
/// `mine` of every rank, in rank order. Collective.
RanksRecord gather_ranks(Group& group, const RankRecord& mine);

}  // namespace cohort
