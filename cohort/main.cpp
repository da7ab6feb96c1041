#include <signal.h>
#include <unistd.h>

#include <cstring>

#include "cohort/bench/bench_verb.h"
#include "cohort/cli/verb.h"

namespace {

void end_at_once(int) {
  static constexpr char kLine[] = "cohort: interrupted before the first step; nothing was saved\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kLine, sizeof kLine - 1);
  ::_exit(130);
}

/// LibTorch works for 0.2 s before main() begins, and Ctrl-C in that time is to be answered too. `train` takes the signal over.
void watch_start(int argc, char** argv, char**) {
  struct sigaction before{};
  if (argc < 2 || std::strcmp(argv[1], "train") != 0 || ::sigaction(SIGINT, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) return;
  ::signal(SIGINT, end_at_once);
}

// Run before the constructors of all libraries.
[[gnu::section(".preinit_array"), gnu::used]] void (*at_start)(int, char**, char**) = watch_start;

}  // namespace

int main(int argc, char** argv) { return cohort::run_cli_with({cohort::bench_verb()}, argc, argv); }
