#pragma once
// The configuration of a run that goes on: the run's own config.toml, and over it what the user says now.

#include <set>
#include <string>
#include <vector>

#include "cohort/job/config.h"

namespace cohort {

/// A setting that is another than the run had. Values as TOML.
struct SettingChange {
  std::string setting, from, to;
};
/// "changed: lr 0.01 -> 0.1".
std::string to_text(const SettingChange& change);

struct ResumeRequest {
  std::string run;              ///< The run's folder.
  std::string file;             ///< A config.toml that was given beside it, "" for none. The run's own is no other.
  Config given;                 ///< Holds the values of
  std::set<std::string> names;  ///< the settings that were given as options.
  std::string trained = {};     ///< What its newest checkpoint was trained with, as TOML; "": what RUN/config.toml says.
};

/// What the run was trained with so far.
Config trained_config(const ResumeRequest& request);

/// What the run was trained with, over it what RUN/config.toml has that is another by now, over that the file's settings, and the options
/// over all. Steps given where the run has epochs take their place, and the other way round. Error(kBadInput) with file and line where one
/// of the files is not what it should be.
Config resumed_config(const ResumeRequest& request);

/// What `now` has that `before` had not, in the order of the settings; without what belongs to one call alone (run, resume, json, quiet,
/// inject).
std::vector<SettingChange> changes_between(const Config& before, const Config& now);
/// The configuration as a run keeps it: without what belongs to one call alone.
Config lasting_config(const Config& config);

}  // namespace cohort
