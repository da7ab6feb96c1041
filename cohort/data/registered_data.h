#pragma once
// Inside of registry.h: how registered data are opened.

#include <string>

#include "cohort/data/registry.h"

namespace cohort {

/// What its factory gives. Error(kBadInput) that names the data where that throws, or has no samples to train or to validate on; and when a
/// batch is read whose sizes or targets are not what the shape says.
DataSet open_registered(const DataEntry& entry, const std::string& specification, const std::string& argument, const DataOptions& options);
/// Whether --data knows `name` without any registration.
bool is_built_in_data(const std::string& name);

}  // namespace cohort
