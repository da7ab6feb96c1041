#pragma once
// What a tensor-parallel layout makes of a model, said before training starts: which layers are divided, which are not and why.

#include <string>

#include "cohort/job/layout.h"
#include "cohort/record/start_records.h"
#include "cohort/tensor/shard_graph.h"

namespace cohort {

/// Error(kBadInput) where the layout asks for a division that divides nothing.
void check_division(const ShardPlan& plan, const std::string& model, const Layout& layout);

/// For the record of a run; its sentence is describe().
DivisionRecord division_record(const ShardPlan& plan, const Layout& layout);
/// "tp=2 divides 5 of 8 layers with 97 % of the weights; whole: norm (no rule ...)". Layers that have nothing to divide are not counted.
std::string describe(const ShardPlan& plan, const Layout& layout);

}  // namespace cohort
