#pragma once
// When a setting, or a key of --layout, means something: one table, a row for each of them. The command line, files and train() are checked
// by it, -h and docs/guide/configuration.md show it, and config.toml has what it lets through. So no option is accepted and ignored.

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/job/config.h"
#include "cohort/job/layout.h"
#include "cohort/job/specs/devices.h"

namespace cohort {

/// What decides whether a setting means something.
struct Situation {
  const Config& config;
  Layout layout;
  int num_ranks = 1;
  bool one_host = true;         ///< All ranks are on one host, where they can share memory.
  std::optional<bool> is_text;  ///< The kind of data; empty: not known before it is opened.

  Devices devices() const { return parse_devices(config.device); }
};
/// As far as the configuration tells: its layout and --workers on this host, what its data's name says.
COHORT_PROGRAM_API Situation situation_of(const Config& config);
/// Whether ranks talk to the one that serves the model, and to nobody else: sync=async, stale:K and queue, but under the virtual
/// clock.
bool is_served(const Config& config, const Layout& layout);
/// `data` as --data has it; empty where the name does not tell.
std::optional<bool> is_text_data(const std::string& data);

/// As it is typed: TOML without its quotes.
std::string plain_value(const Setting& setting, const Config& config);

struct OptionRule {
  const char* name;                ///< Of a setting, or of a key of --layout.
  const char* off;                 ///< The value that asks for nothing, as Setting::get writes it: never refused. "" where there is none.
  const char* when;                ///< "with --precision fp16"; "": always.
  bool (*acts)(const Situation&);  ///< Null: always.
  std::string (*now)(const Situation&);  ///< "the precision is fp32"
  const char* instead;                   ///< "use --precision fp16"
};
const std::vector<OptionRule>& option_rules();
const std::vector<OptionRule>& layout_rules();

/// Whether the setting means something there. A setting without a row does not.
bool acts(const std::string& setting, const Situation& situation);
/// Error(kBadInput) for the first setting that was given, or key of the layout that is not its default, and would be ignored.
COHORT_PROGRAM_API void check_options(const Situation& situation);

/// A file's settings below those of the command line: what means something in the file alone, and no longer beside these options, goes back
/// to its default. Returns the names.
std::vector<std::string> leave_out_overridden(Config& merged, const Config& file, const std::set<std::string>& command_line);

}  // namespace cohort
