#pragma once
// The first samples of a source as a source of their own.

#include <cstdint>
#include <memory>

#include "cohort/data/source/source.h"

namespace cohort {

/// The first `count` samples of `source`, or all where there are no more or `count` is negative.
std::shared_ptr<const DataSource> first_samples(const std::shared_ptr<const DataSource>& source, int64_t count);

}  // namespace cohort
