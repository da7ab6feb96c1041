#pragma once
// The configuration of a resumed run: its own config.toml, overridden by new settings.

#include <set>
#include <string>
#include <vector>

#include "cohort/job/config.h"

namespace cohort {

/// A changed setting; values as TOML.
struct SettingChange {
  std::string setting, from, to;
};
/// "changed: lr 0.01 -> 0.1".
std::string to_text(const SettingChange& change);

struct ResumeRequest {
  std::string run;              ///< The run's folder.
  std::string file;             ///< A further config.toml, or "". The run's own does not count.
  Config given;                 ///< Values of the options,
  std::set<std::string> names;  ///< and which were given.
  std::string trained = {};     ///< TOML of its newest checkpoint; "": RUN/config.toml.
};

/// The configuration that the run was trained with so far.
Config trained_config(const ResumeRequest& request);

/// trained_config(), overridden by edits of RUN/config.toml, then by the further file, then by the options. New steps replace epochs, and
/// vice versa. Error(kBadInput) with file and line for an invalid file.
Config resumed_config(const ResumeRequest& request);

/// Changed settings in their order, without those of one invocation (run, resume, json, quiet, inject).
std::vector<SettingChange> changes_between(const Config& before, const Config& now);
/// The configuration without settings of one invocation.
Config persistent_config(const Config& config);

}  // namespace cohort
