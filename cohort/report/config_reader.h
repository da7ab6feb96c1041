#pragma once
// The values of a TOML file for show: no setting is checked, because a report must open the run of another version too.

#include <string>
#include <vector>

#include "cohort/report/run_reader.h"

namespace cohort::report {

/// In the order of the file. Error(kBadInput) with file and line where it is not TOML.
std::vector<ConfigValue> read_config_values(const std::string& path);

}  // namespace cohort::report
