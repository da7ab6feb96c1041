#pragma once
// What makes the results of a study less than they seem, however they are shown.

#include <string>
#include <vector>

#include "cohort/study/store.h"

namespace cohort::study {

/// Sentences that whoever ran the study left in the store (the note "halving"); empty for most.
std::vector<std::string> warnings_of(const Store& store);
/// The same of a study's folder; an archive's has none.
std::vector<std::string> warnings_of(const std::string& folder);

}  // namespace cohort::study
