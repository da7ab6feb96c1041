#pragma once
// Samples that a compression looks at.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "cohort/data/source.h"

namespace cohort {

/// `count` samples (or all, where there are no more) spread evenly over `source`, which must outlive it. Error(kBadInput) for none.
std::shared_ptr<const DataSource> spread_samples(const DataSource& source, int64_t count);

/// Samples [first, first + count) of `source`, or as many as there are, as a model takes them; memory of its own.
at::Tensor input_batch(const DataSource& source, int64_t first, int64_t count);

}  // namespace cohort
