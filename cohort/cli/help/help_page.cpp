#include "cohort/cli/help/help_page.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/job/learning_rate.h"
#include "cohort/job/option_rules.h"

namespace cohort {
namespace {

constexpr int kNameColumns = 34, kNarrow = 80, kLeastWidth = 40, kUsualWidth = 120;

/// The help of a setting, when it acts, and its default, which may be the value of the trained run.
std::string help_of(const Setting& setting, bool has_default_from_run) {
  std::string help = setting.help;
  const std::string value = has_default_from_run ? "the run's" : plain_value(setting, Config());
  if (const size_t own = help.rfind(" (default"); has_default_from_run && own != std::string::npos && help.ends_with(')')) help.resize(own);
  const bool says_it = help.find("default") != std::string::npos || help.find("left out") != std::string::npos;
  if (!setting.is_flag && !value.empty() && !says_it) help += " (default " + value + ")";
  for (const OptionRule& rule : option_rules())
    if (rule.name == setting.name && rule.acts) return concat(help, " [", rule.when, "]");
  return help;
}

/// The names that an action reads in any of its modes.
std::set<std::string> read_by(const Verb& verb, const std::string& action) {
  std::set<std::string> names;
  for (const VerbAction& row : verb.actions) {
    if (row.name != action) continue;
    names.insert(row.reads.begin(), row.reads.end());
    if (!row.mode.empty()) names.insert(row.mode);
  }
  return names;
}

}  // namespace

bool has_name(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string dashed(const std::string& name) { return (name.size() == 1 ? "-" : "--") + name; }

std::vector<TypedOption> options_of(const Verb& verb, const std::string& action) {
  const std::set<std::string> read = read_by(verb, action);
  const auto is_read = [&](const std::string& name) { return action.empty() || read.contains(name); };
  std::vector<TypedOption> out;
  const std::string own = "Options of " + verb.name + (action.empty() ? "" : " " + action);
  for (const VerbOption& option : verb.options)
    if (is_read(option.name)) out.push_back({dashed(option.name), option.value_name, option.help, own});
  for (const Setting& setting : settings())
    if (has_name(verb.settings, setting.name) && is_read(setting.name))
      out.push_back(
          {dashed(setting.name), setting.value_name, help_of(setting, verb.defaults_from_run.contains(setting.name)), setting.group});
  return out;
}

std::vector<std::string> action_names(const Verb& verb) {
  std::vector<std::string> names;
  for (const VerbAction& action : verb.actions)
    if (!has_name(names, action.name)) names.push_back(action.name);
  return names;
}

std::vector<std::string> examples_of(const Verb& verb, const std::string& action) {
  if (action.empty()) return verb.examples;
  std::vector<std::string> out;
  for (const std::string& example : verb.examples)
    if ((example + " ").find("cohort " + verb.name + " " + action + " ") != std::string::npos) out.push_back(example);
  return out;
}

std::string wrapped(const std::string& text, int indent, int width) {
  const std::string blanks(static_cast<size_t>(indent), ' ');
  if (const size_t end = text.find('\n'); end != std::string::npos)
    return wrapped(text.substr(0, end), indent, width) + wrapped(text.substr(end + 1), indent, width);
  std::string out, line;
  for (const std::string& word : split(text, ' ')) {
    if (!line.empty() && indent + std::ssize(line) + 1 + std::ssize(word) > width) {
      out += blanks + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return out + blanks + line + "\n";
}

int help_width() {
  winsize size{};
  int width = kUsualWidth;
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    width = size.ws_col;
  } else if (const char* const columns = std::getenv("COLUMNS")) {
    width = static_cast<int>(std::clamp<int64_t>(parse_integer(columns).value_or(kUsualWidth), kLeastWidth, 1000));
  }
  return std::max(kLeastWidth, width);
}

std::string help_page(const Verb& verb, const std::string& action, int width) {
  std::string page;
  const std::string name = "cohort " + verb.name + (action.empty() ? "" : " " + action);
  const std::vector<std::string> examples = examples_of(verb, action);
  if (!examples.empty()) page = "Examples:\n  " + join(examples, "\n  ") + "\n\n";
  page += wrapped(verb.summary, 0, width);
  const bool takes_words = action.empty() || std::any_of(verb.actions.begin(), verb.actions.end(),
                                                         [&](const VerbAction& one) { return one.name == action && one.most_words > 0; });
  const std::string words = verb.positional_help.empty() ? "" : verb.takes_file ? " [config.toml]" : takes_words ? " [WORDS]" : "";
  page += "\n" + wrapped("Usage: " + name + words + " [OPTIONS]", 0, width);
  if (!verb.positional_help.empty()) page += wrapped((verb.takes_file ? "config.toml: " : "WORDS: ") + verb.positional_help, 2, width);
  if (action.empty() && verb.actions.size() > 1) page += wrapped("cohort " + verb.name + " ACTION -h says what an action reads.", 2, width);
  std::string group;
  for (const TypedOption& option : options_of(verb, action)) {
    if (option.group != group) page += "\n" + option.group + ":\n";
    group = option.group;
    std::string head =
        "  " + option.name + (option.value_name.empty() || option.value_name.starts_with("[=") ? "" : " ") + option.value_name;
    if (width < kNarrow || std::ssize(head) + 2 > kNameColumns) {
      page += head + "\n" + wrapped(option.help, width < kNarrow ? 6 : kNameColumns, width);
      continue;
    }
    head.resize(kNameColumns, ' ');
    page += head + wrapped(option.help, kNameColumns, width).substr(kNameColumns);
  }
  if (has_name(verb.settings, "lr") && action.empty()) {
    const std::string table = learning_rate_table();
    const size_t heading = table.find('\n');
    page += "\n" + wrapped(table.substr(0, heading), 0, width) + table.substr(heading + 1) + "\n";
  }
  return page;
}

}  // namespace cohort
