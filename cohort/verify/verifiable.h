#pragma once
// What verify has nothing to compare with, and says so before it trains.

#include "cohort/data/source/source.h"
#include "cohort/job/config.h"
#include "cohort/job/layout.h"

namespace cohort {

/// Error(kBadInput) for a layout or an option that is another training by design, or that no run could do.
void check_verifiable(const Config& config, const Layout& layout, const DataSet& data);

}  // namespace cohort
