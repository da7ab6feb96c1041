#pragma once
// When a setting, or a key of --layout, has an effect (settings_table.cpp has one row for each). The command line, files and train() are
// checked by it, -h and docs/guide/configuration.md show it, and config.toml has what it lets through: no option is accepted and ignored.

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/job/config.h"
#include "cohort/job/layout.h"
#include "cohort/job/specs/devices.h"

namespace cohort {

/// What decides whether a setting has an effect.
struct Situation {
  const Config& config;
  Layout layout;
  int num_ranks = 1;
  bool one_host = true;         ///< All ranks are on one host, where they can share memory.
  std::optional<bool> is_text;  ///< The kind of data; empty: not known before it is opened.

  Devices devices() const { return parse_devices(config.device); }
};
/// The situation as far as the configuration alone determines it: its layout, --workers on this host, the kind of data by its name.
COHORT_PROGRAM_API Situation situation_of(const Config& config);
/// Whether ranks exchange with a parameter server only: sync=async, stale:K, queue and a quorum, without --virtual.
bool is_served(const Config& config, const Layout& layout);
/// `data` is a value of --data; nullopt where its name does not determine the kind.
std::optional<bool> is_text_data(const std::string& data);

/// The value as it is typed: TOML without its quotes.
std::string plain_value(const Setting& setting, const Config& config);

/// When a setting has an effect. Null and "": always.
struct Condition {
  const char* when = "";  ///< "with --precision fp16"
  bool (*acts)(const Situation&) = nullptr;
  std::string (*now)(const Situation&) = nullptr;  ///< Why it has none: "the precision is fp32".
  const char* instead = "";                        ///< "use --precision fp16"
};

struct OptionRule : Condition {
  std::string name;  ///< The name of a setting, or of a key of --layout.
  std::string off;   ///< Value without effect, which is never refused, in the form of Setting::get; "": none.
};
const std::vector<OptionRule>& option_rules();
const std::vector<OptionRule>& layout_rules();

/// Whether the setting has an effect in that situation.
bool acts(const std::string& setting, const Situation& situation);
/// Error(kBadInput) for the first setting that was given, or key of the layout that is not its default, and would be ignored.
COHORT_PROGRAM_API void check_options(const Situation& situation);

/// Resets settings of a file that had an effect there and have none beside the options of the command line. Returns their names.
std::vector<std::string> leave_out_overridden(Config& merged, const Config& file, const std::set<std::string>& command_line);

}  // namespace cohort
