#pragma once
// What `cohort study run` prints: lines of JSON, or a table for people. Torch-free.

#include <string>

#include "cohort/base/text/json_fwd.h"
#include "cohort/study/spec/data.h"
#include "cohort/study/spec/spec.h"

namespace cohort {

/// {"event":"trial", ...}
std::string trial_line(int64_t batch_size, const study::Trial& trial);
/// {"event":"steps_to_result", ...} for each batch size of the spec, of its first goal; then {"event":"work", ...}.
void print_steps_lines(const study::StudyData& data, const study::StudySpec& spec);
/// The same as a table, with what to do next.
void print_steps_table(const study::StudyData& data, const study::StudySpec& spec, const std::string& folder);
/// Steps that were trained, and that the same trials would have taken with their whole budgets; both also times the batch size.
Json work_saved(const study::StudyData& data, const study::StudySpec& spec);
std::string halving_warning();

}  // namespace cohort
