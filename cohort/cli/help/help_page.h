#pragma once
// What `cohort VERB -h`, `cohort VERB ACTION -h`, `cohort help VERB ACTION` and `cohort completion` print, made from the table of verbs.
// Internal to the command line.

#include <map>
#include <string>
#include <vector>

#include "cohort/cli/options/verb.h"

namespace cohort {

/// "--name", or "-n" of one letter.
std::string dashed(const std::string& name);

/// An option as somebody types it: of a verb's own, or a setting that it reads.
struct TypedOption {
  std::string name;        ///< With its dashes.
  std::string value_name;  ///< "" for a flag.
  std::string help;        ///< With when it means something, and its default.
  std::string group;       ///< Heading.
};
/// Those that the verb reads, or this action of it ("" for all), in the order of the help.
std::vector<TypedOption> options_of(const Verb& verb, const std::string& action);

/// Names of its actions, each once.
std::vector<std::string> action_names(const Verb& verb);
/// Its examples, or those of one action.
std::vector<std::string> examples_of(const Verb& verb, const std::string& action);

/// Wrapped to `width` columns; below 80 the text of an option stands below its name. Examples stay whole lines.
std::string help_page(const Verb& verb, const std::string& action, int width);
/// Of the terminal of standard output; where there is none, of COLUMNS, or 120. At least 40.
int help_width();

/// "  text text", broken between words so that no line is longer than `width`, if a word allows it; each line begins with `indent` blanks.
/// A line break of the text stays one.
std::string wrapped(const std::string& text, int indent, int width);

// Completion for shells.

/// Settings whose values are a few words, and those words.
const std::map<std::string, std::vector<std::string>>& setting_choices();

/// A script for bash, zsh or fish. Error(kBadInput) for another shell.
std::string completion_script(const std::string& shell, const std::vector<Verb>& verbs);

}  // namespace cohort
