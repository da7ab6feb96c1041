#pragma once
// The folder that a run is written to.

#include <string>

#include "cohort/base/config.h"

namespace cohort {

/// runs/MODEL-YYYYMMDD-HHMMSS.
std::string default_run_folder(const Config& config);

/// Makes config.run, with its config.toml where the run is new. Error(kBadInput) when it holds a run already and config.resume is off,
/// holds none and it is on, or cannot be made.
void prepare_run_folder(const Config& config);
/// The config.toml of config.run. Of a run that goes on not before its checkpoint is known to fit: what is refused changes nothing.
void write_run_config(const Config& config);

/// Now, as 2026-01-31T12:00:00Z.
std::string utc_now();

}  // namespace cohort
