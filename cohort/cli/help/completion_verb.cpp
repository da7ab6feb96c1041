// `cohort completion`.
#include <cstdio>

#include "cohort/cli/help/completion.h"
#include "cohort/cli/options/verb.h"

namespace cohort {
namespace {

int run_completion(const Arguments& arguments) {
  std::printf("%s", completion_script(arguments.positional.empty() ? "" : arguments.positional.front(), verbs_in_use()).c_str());
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

}  // namespace cohort
