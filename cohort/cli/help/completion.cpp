// Completes a verb first, then an action of it, then the options that it reads; after an option with a value the words that it takes, or
// files. The scripts hold all names, so that completing starts no program.
#include "cohort/cli/help/help_page.h"

#include <algorithm>
#include <cstdio>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

std::string names_of(const std::vector<Verb>& verbs) {
  std::vector<std::string> names;
  for (const Verb& verb : verbs) names.push_back(verb.name);
  return join(names, " ");
}

std::string option_names(const Verb& verb, const std::string& action) {
  std::vector<std::string> names = {"--help"};
  for (const TypedOption& option : options_of(verb, action)) names.push_back(option.name);
  return join(names, " ");
}

/// The words that the value of an option may be; empty if it may be any.
std::vector<std::string> choices_of(const TypedOption& option) {
  for (const auto& [name, values] : setting_choices())
    if (option.name == "--" + name) return values;
  return {};
}

/// Cases for options with a fixed set of values, which is the same in all verbs.
std::string choice_cases(const std::vector<Verb>& verbs) {
  std::string cases;
  std::vector<std::string> seen;
  for (const Verb& verb : verbs)
    for (const TypedOption& option : options_of(verb, "")) {
      const std::vector<std::string> choices = choices_of(option);
      if (choices.empty() || std::find(seen.begin(), seen.end(), option.name) != seen.end()) continue;
      seen.push_back(option.name);
      cases += "    " + option.name + ") COMPREPLY=($(compgen -W \"" + join(choices, " ") + "\" -- \"$word\")); return ;;\n";
    }
  return cases;
}

/// The options that are followed by a value.
std::string value_options(const Verb& verb) {
  std::vector<std::string> names;
  for (const TypedOption& option : options_of(verb, ""))
    if (!option.value_name.empty() && !option.value_name.starts_with('[')) names.push_back(option.name);
  return join(names, " ");
}

std::string bash_script(const std::vector<Verb>& verbs) {
  std::string cases;
  for (const Verb& verb : verbs) {
    cases += concat("    ", verb.name, ")\n      options=\"", option_names(verb, ""), "\" valued=\"", value_options(verb), "\"\n");
    if (const std::vector<std::string> actions = action_names(verb); !actions.empty()) {
      cases += concat("      actions=\"", join(actions, " "), "\"\n      case $action in\n");
      for (const std::string& action : actions) cases += concat("        ", action, ") options=\"", option_names(verb, action), "\" ;;\n");
      cases += "      esac\n";
    }
    cases += "      ;;\n";
  }
  return concat(
      R"sh(# Completion of cohort for bash: eval "$(cohort completion bash)", or in ~/.local/share/bash-completion/completions/cohort
_cohort() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]} action=${COMP_WORDS[2]}
  local options= actions= valued= verbs=")sh",
      names_of(verbs), R"sh("
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then COMPREPLY=($(compgen -W "$verbs help version --help --version" -- "$word")); return; fi
  if [[ $verb == help ]]; then COMPREPLY=($(compgen -W "$verbs" -- "$word")); return; fi
  case $verb in
)sh",
      cases, R"sh(    *) return ;;
  esac
  case $before in
)sh",
      choice_cases(verbs), R"sh(  esac
  if [[ " $valued " == *" $before "* ]]; then compopt -o default 2>/dev/null; return; fi
  if ((COMP_CWORD == 2)) && [[ $actions && $word != -* ]]; then COMPREPLY=($(compgen -W "$actions" -- "$word")); return; fi
  if [[ $word == -* ]]; then COMPREPLY=($(compgen -W "$options" -- "$word")); return; fi
  compopt -o default 2>/dev/null
}
complete -F _cohort cohort
)sh");
}

/// zsh can load completions of bash.
std::string zsh_script(const std::vector<Verb>& verbs) {
  return "#compdef cohort\n# Completion of cohort for zsh: eval \"$(cohort completion zsh)\" after compinit, in ~/.zshrc\n"
         "autoload -U +X bashcompinit && bashcompinit\n" +
         bash_script(verbs);
}

std::string fish_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

std::string fish_script(const std::vector<Verb>& verbs) {
  std::string out = "# Completion of cohort for fish: cohort completion fish > ~/.config/fish/completions/cohort.fish\n";
  for (const Verb& verb : verbs) {
    out += "complete -c cohort -n __fish_use_subcommand -f -a " + verb.name + " -d " +
           fish_quoted(verb.summary.substr(0, verb.summary.find(':')).substr(0, 70)) + "\n";
    const std::string here = "complete -c cohort -n '__fish_seen_subcommand_from " + verb.name + "'";
    for (const std::string& action : action_names(verb)) out += here + " -f -a " + action + "\n";
    for (const TypedOption& option : options_of(verb, "")) {
      const std::vector<std::string> choices = choices_of(option);
      const std::string name = option.name.starts_with("--") ? "-l " + option.name.substr(2) : "-s " + option.name.substr(1);
      out += here + " " + name +
             (option.value_name.empty() || option.value_name.starts_with('[') ? ""
              : choices.empty()                                               ? " -r"
                                                                              : " -x -a " + fish_quoted(join(choices, " "))) +
             " -d " + fish_quoted(option.help.substr(0, 70)) + "\n";
    }
  }
  return out;
}

int run_completion(const Arguments& arguments) {
  std::printf("%s", completion_script(arguments.positional.empty() ? "" : arguments.positional.front(), verbs_in_use()).c_str());
  return 0;
}

}  // namespace

const std::map<std::string, std::vector<std::string>>& setting_choices() {
  static const std::map<std::string, std::vector<std::string>> kChoices = {
      {"backend", {"auto", "shm", "gloo", "mpi", "nccl", "shm+gloo", "shm+mpi"}},
      {"optimizer", {"sgd", "momentum", "nesterov", "adam", "adamw"}},
      {"precision", {"fp32", "bf16", "fp16"}},
      {"schedule-lr", {"constant", "linear", "cosine"}},
      {"weights", {"auto", "private"}}};
  return kChoices;
}

std::string completion_script(const std::string& shell, const std::vector<Verb>& verbs) {
  const std::vector<std::string> shells = {"bash", "zsh", "fish"};
  if (shell == "bash") return bash_script(verbs);
  if (shell == "zsh") return zsh_script(verbs);
  if (shell == "fish") return fish_script(verbs);
  fail(ErrorCode::kBadInput, "completion: ", shell.empty() ? "no shell given" : "unknown shell '" + shell + "'",
       did_you_mean(shell, shells), "; expected bash, zsh or fish");
}

Verb completion_verb() {
  return {.name = "completion",
          .summary = "Prints a script that completes verbs, actions and options in a shell.",
          .examples = {"cohort completion bash"},
          .positional_help = "bash, zsh or fish",
          .most_words = 1,
          .run = run_completion};
}

}  // namespace cohort
