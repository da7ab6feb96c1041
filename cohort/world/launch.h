#pragma once
// Starts ranks on this machine and supervises them until all have ended. Torch-free.
//
// Ranks of our own program are forked: the program and LibTorch are loaded once, and the data set, read before, is shared without a copy.
// The rendezvous is an inherited memory file, so no port is opened and no name can be left behind. A rank dies with its launcher
// (PR_SET_PDEATHSIG).

#include <functional>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/world/world.h"

namespace cohort {

struct LaunchOptions {
  int num_ranks = 1;
  double grace_seconds = 3.0;        ///< After a rank failed, the others have so long to end by themselves.
  double stop_seconds = 30.0;        ///< After Ctrl-C ranks have so long to finish the step, not counting a checkpoint.
  std::string* failure = nullptr;    ///< Receives the line that is printed if the job fails.
  bool workers_may_be_lost = false;  ///< The job goes on if ranks other than 0 are killed, and ends with rank 0.
  bool is_one_of_many = false;  ///< One of several jobs of this process: exit code 130 after a stop request even if all ranks ended well.
  bool counts_steps = true;     ///< Ranks report their steps, which are named when one fails.
};

/// Runs `body` in `num_ranks` forked processes and returns the exit code of the job: 0, that of the rank that failed first, 4 if a rank was
/// lost, 130 if interrupted. Prints to stderr which rank failed, how, and after which step. An exception of `body` becomes the rank's exit
/// code and message. Error(kEnvironment) if the process has more than one thread.
COHORT_PROGRAM_API int run_ranks(const LaunchOptions& options, const std::function<int(const World&)>& body);

/// Forks `num_ranks` copies of this process, in which alone the call returns, each with its World: for programs whose main() continues as a
/// rank. The launcher exits with the job's exit code, without static destructors. Errors as run_ranks().
World become_ranks(const LaunchOptions& options);

/// Executes `arguments` `num_ranks` times with torchrun's environment (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, ...).
/// Programs linked with Cohort use the inherited file for the rendezvous and open no port. OMP_NUM_THREADS, unless set, becomes each rank's
/// share of the usable cores, at least 1, which is logged. Error(kBadInput) for a path that is not executable.
int run_program(const LaunchOptions& options, const std::vector<std::string>& arguments);

/// Runs `body` as a rank and returns its exit code: catches exceptions, records them in the status page, maps them to exit codes. `failure`
/// receives the text.
int guarded(const World& world, const std::function<int(const World&)>& body, std::string* failure = nullptr);

/// Number of threads of this process.
COHORT_PROGRAM_API int num_threads_of_process();

}  // namespace cohort
