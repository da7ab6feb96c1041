// `cohort-bench ACTION ...` is what `cohort bench ACTION ...` runs (cohort/cli/bench.cpp).
#include <signal.h>
#include <unistd.h>

#include "bench/program/bench_verb.h"
#include "cohort/cli/options/verb.h"

int main(int argc, char** argv) {
  // The first process of a container is not ended by a signal that it does not handle.
  if (::getpid() == 1)
    for (const int number : {SIGINT, SIGTERM, SIGHUP})
      if (::signal(number, [](int) { ::_exit(130); }) == SIG_IGN) ::signal(number, SIG_IGN);
  return cohort::run_verb(cohort::bench_verb(), argc, argv);
}
