#include <signal.h>
#include <unistd.h>

#include <cstring>

#include "cohort/cohort.h"

namespace {

pid_t first_pid = 0;
bool trains = false;

void end_at_once(int) {
  static constexpr char kTrain[] = "cohort: interrupted before the first step; nothing was saved\n", kOther[] = "cohort: interrupted\n";
  // Once for all ranks that this process may have started since.
  if (::getpid() == first_pid) [[maybe_unused]]
    const ssize_t written = trains ? ::write(STDERR_FILENO, kTrain, sizeof kTrain - 1) : ::write(STDERR_FILENO, kOther, sizeof kOther - 1);
  ::_exit(130);
}

/// LibTorch works for 0.2 s before main() begins, and Ctrl-C in that time is to be answered too. `train` takes the signals over. The first
/// process of a container is not ended by a signal that it does not handle.
void watch_start(int argc, char** argv, char**) {
  first_pid = ::getpid();
  trains = argc >= 2 && std::strcmp(argv[1], "train") == 0;
  if (!trains && first_pid != 1) return;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before{};
    if (::sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_DFL) ::signal(signal, end_at_once);
  }
}

// Run before the constructors of all libraries.
[[gnu::section(".preinit_array"), gnu::used]] void (*at_start)(int, char**, char**) = watch_start;

}  // namespace

int main(int argc, char** argv) { return cohort::run_cli(argc, argv); }
