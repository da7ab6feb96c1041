#pragma once
// What `cohort VERB -h`, `cohort VERB ACTION -h`, `cohort help VERB ACTION` and `cohort completion` print, made from the table of verbs.
// Internal to the command line.

#include <map>
#include <string>
#include <vector>

#include "cohort/cli/options/verb.h"

namespace cohort {

/// Whether `name` is one of `names`.
bool has_name(const std::vector<std::string>& names, const std::string& name);
/// "--name", or "-n" of one letter.
std::string dashed(const std::string& name);

/// An option as users type it: one of the verb's own, or a setting that it reads.
struct TypedOption {
  std::string name;        ///< Including its dashes.
  std::string value_name;  ///< "" for a flag.
  std::string help;        ///< Including when it acts, and its default.
  std::string group;       ///< Its heading.
};
/// The options that a verb, or one action of it ("" for all), reads, in the order of the help.
std::vector<TypedOption> options_of(const Verb& verb, const std::string& action);

/// The names of a verb's actions, each once.
std::vector<std::string> action_names(const Verb& verb);
/// The examples of a verb, or of one action.
std::vector<std::string> examples_of(const Verb& verb, const std::string& action);

/// The help, wrapped to `width` columns; below 80 the text of an option stands below its name. Examples are not wrapped.
std::string help_page(const Verb& verb, const std::string& action, int width);
/// The width of the terminal of standard output; without one COLUMNS, or 120. At least 40.
int help_width();

/// `text` broken between words into lines of at most `width`, unless a word is longer; each line begins with `indent` blanks. Line breaks
/// of the text are kept.
std::string wrapped(const std::string& text, int indent, int width);

// Completion for shells.

/// The values of settings that have a fixed set of them.
const std::map<std::string, std::vector<std::string>>& setting_choices();

/// A script for bash, zsh or fish. Error(kBadInput) for another shell.
std::string completion_script(const std::string& shell, const std::vector<Verb>& verbs);

}  // namespace cohort
