#pragma once
// Opens registered data. Internal to registry.h.

#include <string>

#include "cohort/data/registry.h"

namespace cohort {

/// Calls the factory. Error(kBadInput) that names the data where it throws, or has no training or validation samples; and when a batch is
/// read whose sizes or targets do not match the shape.
DataSet open_registered(const DataEntry& entry, const std::string& specification, const std::string& argument, const DataOptions& options);
/// Whether `name` is a built-in kind of data.
bool is_built_in_data(const std::string& name);

}  // namespace cohort
