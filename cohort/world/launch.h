#pragma once
// Starts ranks on this machine and looks after them until all have ended. Torch-free.
//
// Ranks of our own program are forked: the program and LibTorch are loaded once and the data set, read before, is shared by all ranks
// without a copy. They meet over an inherited memory file, so no port is opened and nothing has a name that could stay behind. A rank dies
// with its launcher (PR_SET_PDEATHSIG).

#include <functional>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/world/world.h"

namespace cohort {

struct LaunchOptions {
  int num_ranks = 1;
  double grace_seconds = 3.0;        ///< After a rank failed the others may end by themselves for so long, then they are killed.
  double stop_seconds = 30.0;        ///< After Ctrl-C ranks may finish the step for so long; writing a checkpoint does not count.
  std::string* failure = nullptr;    ///< Receives the line that is printed when the job fails.
  bool workers_may_be_lost = false;  ///< Ranks but 0 may be killed: the job goes on, and ends with rank 0.
  bool is_one_of_many = false;       ///< Of the jobs of this process: 130 also where a request to stop met ranks that ended well.
  bool counts_steps = true;          ///< Ranks say how far they have trained: how one ended then says after which step.
};

/// Runs `body` in `num_ranks` forked processes and returns the exit code of the job: 0, that of the rank that failed first, 4 when a rank
/// was lost, 130 when interrupted. Prints to stderr which rank ended how and after which step. An exception of `body` becomes the rank's
/// exit code and its text the message. The process must have one thread; else Error(kEnvironment).
COHORT_PROGRAM_API int run_ranks(const LaunchOptions& options, const std::function<int(const World&)>& body);

/// This process becomes the launcher of `num_ranks` forked copies of itself, in which alone the call returns, each with its World: for
/// programs whose main() goes on as a rank. The launcher ends with the job's exit code, without a return and without static destructors.
/// Errors as run_ranks().
World become_ranks(const LaunchOptions& options);

/// The same with another program: `arguments` is executed `num_ranks` times with torchrun's environment (RANK, WORLD_SIZE, LOCAL_RANK,
/// MASTER_ADDR, MASTER_PORT, ...). Programs linked with Cohort meet over the inherited file and open no port. Where the environment has no
/// OMP_NUM_THREADS, each rank gets its share of the cores that this process may use, at least 1; an info line says so.
/// Error(kBadInput) for a path that is no program.
int run_program(const LaunchOptions& options, const std::vector<std::string>& arguments);

/// What `body` returns in a rank of this process: catches exceptions, records them in the status page, maps them to exit codes. `failure`
/// receives the text.
int guarded(const World& world, const std::function<int(const World&)>& body, std::string* failure = nullptr);

/// How many threads this process has.
COHORT_PROGRAM_API int num_threads_of_process();

}  // namespace cohort
