#pragma once
// Samples that a compression looks at.

#include <cstdint>
#include <memory>

#include "cohort/data/source/source.h"

namespace cohort {

/// `count` samples (or all, where there are no more) spread evenly over `source`, which must outlive it. Error(kBadInput) for none.
std::shared_ptr<const DataSource> spread_samples(const DataSource& source, int64_t count);

}  // namespace cohort
