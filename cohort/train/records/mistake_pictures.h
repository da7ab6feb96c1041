#pragma once
// The pictures on which a model was most sure, and wrong.

#include <vector>

#include "cohort/data/source/source.h"
#include "cohort/record/end_records.h"
#include "cohort/record/evaluation.h"

namespace cohort {

inline constexpr int kMostMistakes = 12;

/// How many of an evaluation's mistakes are worth asking for: 0 where samples are no pictures with classes.
int num_mistakes_of(const DataShape& shape);

/// Those of the validation samples, with their classes' names. Empty where there are none.
MistakesRecord mistakes_record(int64_t step, const std::vector<Mistake>& mistakes, const DataSource& validation,
                               const DataDescription& description);

}  // namespace cohort
