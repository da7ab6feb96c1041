// `cohort completion` and `cohort manual`.
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/help/completion.h"
#include "cohort/cli/verb.h"

namespace cohort {
namespace {

int run_completion(const Arguments& arguments) {
  std::printf("%s", completion_script(arguments.positional.empty() ? "" : arguments.positional.front(), verbs_in_use()).c_str());
  return 0;
}

const Verb& verb_named(const std::string& name) {
  std::vector<std::string> names;
  for (const Verb& verb : verbs_in_use()) {
    if (verb.name == name) return verb;
    names.push_back(verb.name);
  }
  fail(ErrorCode::kBadInput, "manual: no verb '", name, "'", did_you_mean(name, names), "; verbs: ", join(names, " "));
}

int run_manual(const Arguments& arguments) {
  const std::string folder = arguments.option("out", "");
  const std::string name = arguments.positional.empty() ? "" : arguments.positional.front();
  if (folder.empty()) {
    std::printf("%s", manual_page(verbs_in_use(), name.empty() ? nullptr : &verb_named(name)).c_str());
    return 0;
  }
  if (!name.empty()) fail(ErrorCode::kBadInput, "manual ", name, ": --out ", folder, " takes the pages of all verbs; leave ", name, " out");
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) fail(ErrorCode::kEnvironment, "manual: --out ", folder, ": ", failed.message());
  write_file_atomically(folder + "/cohort.1", manual_page(verbs_in_use(), nullptr));
  for (const Verb& verb : verbs_in_use()) write_file_atomically(folder + "/cohort-" + verb.name + ".1", manual_page(verbs_in_use(), &verb));
  return 0;
}

}  // namespace

Verb completion_verb() {
  return {.name = "completion",
          .summary = "Prints a script that completes verbs, actions and options in a shell.",
          .examples = {"cohort completion bash"},
          .positional_help = "bash, zsh or fish",
          .most_words = 1,
          .run = run_completion};
}

Verb manual_verb() {
  return {.name = "manual",
          .summary = "Prints the manual page of a verb, or of the program, for man; or writes all of them.",
          .examples = {"cohort manual train", "cohort manual --out man/man1"},
          .positional_help = "the verb; left out: the program",
          .most_words = 1,
          .options = {{"out", "DIR", "Writes cohort.1 and cohort-VERB.1 there"}},
          .run = run_manual};
}

}  // namespace cohort
