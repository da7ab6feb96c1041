// `cohort bench`: benchmarks are a program of their own, bench/program/, which a build puts beside this one and which is not installed.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "cohort/base/fail.h"
#include "cohort/cli/options/verb.h"
#include "cohort/world/process.h"

namespace cohort {
namespace {

/// Becomes cohort-bench, in the same process: a launcher goes on knowing it.
int run_benchmarks(const Arguments& arguments) {
  const std::filesystem::path folder = std::filesystem::path(program_path()).parent_path();
  const std::string program = folder / "cohort-bench";
  if (::access(program.c_str(), X_OK) != 0)
    fail(ErrorCode::kBadInput, "bench: benchmarks are run from a source checkout, and ", folder.string(),
         " has no program cohort-bench; in a checkout scripts/build makes it (with CMake: the target cohort-bench), then run ",
         "build/release/bin/cohort bench");
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& word : arguments.positional) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  std::fflush(nullptr);
  ::execv(program.c_str(), argv.data());
  fail(ErrorCode::kEnvironment, "bench: cannot start ", program, ": ", std::strerror(errno));
}

}  // namespace

Verb benchmarks_verb() {
  return {
      .name = "bench",
      .summary = "Measures a training step, or the exchanges it is made of, beside their floor and beside peers (in a source checkout).",
      .takes_all_words = true,
      .actions = {{.name = "step"},
                  {.name = "collectives"},
                  {.name = "handover"},
                  {.name = "messages"},
                  {.name = "sync"},
                  {.name = "pipeline"},
                  {.name = "study"},
                  {.name = "forecast"},
                  {.name = "plan"}},
      .run = run_benchmarks};
}

}  // namespace cohort
