#include "cohort/world/launch.h"

#include "cohort/base/fail.h"
#include "cohort/cli/options/verb.h"

namespace cohort {

Verb launch_verb() {
  return {.name = "launch",
          .summary = "Starts N ranks of any program on this machine with the environment of torchrun, and looks after them.",
          .examples = {"cohort launch -n 2 cohort train --model cnn --data fashion-mnist --run runs/x",
                       "cohort launch -n 4 python3 -c 'import os; print(os.environ[\"RANK\"], os.environ[\"WORLD_SIZE\"])'"},
          .positional_help = "PROGRAM and its arguments",
          .takes_program = true,
          .options = {{"n", "N", "ranks to start; each gets OMP_NUM_THREADS = cores that may be used / N, unless it is set"},
                      {"grace", "SECONDS",
                       "after Ctrl-C or SIGTERM ranks may go on for so long, and for as long as they write a checkpoint, before they are "
                       "killed (default 30)"}},
          .run = [](const Arguments& arguments) {
            if (!arguments.options.contains("n")) fail(ErrorCode::kBadInput, "launch: -n N is missing: how many ranks to start");
            std::vector<std::string> program = arguments.positional;
            if (!program.empty() && program.front() == "--") program.erase(program.begin());
            return run_program({.num_ranks = static_cast<int>(arguments.integer_option("n", 1, 1, 4096)),
                                .stop_seconds = static_cast<double>(arguments.integer_option("grace", 30, 1, 86400))},
                               program);
          }};
}

}  // namespace cohort
