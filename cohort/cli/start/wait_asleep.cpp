// OpenMP's threads spin for milliseconds at the end of each parallel loop. Where one of them shares its core with another program it is
// late by a time slice, while the others spin: a step of a CNN on two cores beside one busy program took 1.3 times as long as with
// threads that sleep, and alone the same (bench/busy_core.py). libgomp reads its variables when it is loaded, and it is loaded before
// main(), so only a new process image can change them. Stop signals are blocked until the new image has installed its handlers.
#include "cohort/cli/start/wait_asleep.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "cohort/base/system/machine.h"
#include "cohort/base/text/text.h"
#include "cohort/world/process.h"

namespace cohort {
namespace {

constexpr const char* kVariable = "OMP_WAIT_POLICY";
constexpr const char *kHeldBack = "held back",
                     *kAsItWas = "1";  // Values of kThreadsSleepVariable: whether stop signals were blocked for the new image.
constexpr std::chrono::milliseconds kBetweenLooks{3};
constexpr int kNumLooks = 5;

int num_running() {
  std::ifstream file("/proc/stat");
  for (std::string word; file >> word;)
    if (word == "procs_running") {
      std::string number;
      file >> number;
      return static_cast<int>(std::clamp<int64_t>(parse_integer(number).value_or(1), 1, 1 << 20));
    }
  return 1;
}

/// The whole number after that option; 0 without the option.
int64_t number_behind(const std::string& option, int argc, char** argv) {
  int64_t number = 0;
  for (int i = 2; i + 1 < argc; ++i)
    if (option == argv[i]) number = parse_integer(argv[i + 1]).value_or(0);
  return number;
}

/// Returns whether Ctrl-C was blocked before.
bool set_interrupts(int how) {
  sigset_t interrupts, before;
  sigemptyset(&interrupts);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&interrupts, signal);
  ::sigprocmask(how, &interrupts, &before);
  return sigismember(&before, SIGINT) == 1;
}

bool has_word(const std::string& word, int argc, char** argv) { return std::find(argv, argv + argc, word) != argv + argc; }

}  // namespace

int num_running_elsewhere() {
  std::array<int, kNumLooks> looks{};
  for (int& look : looks) {
    std::this_thread::sleep_for(kBetweenLooks);
    look = num_running();
  }
  std::sort(looks.begin(), looks.end());
  return looks[kNumLooks / 2] - 1;
}

void wait_asleep_where_cores_are_taken(int argc, char** argv) {
  constexpr std::array<const char*, 8> kVerbs = {"train", "verify", "study", "plan", "evaluate", "predict", "sample", "compress"};
  if (const char* const again = std::getenv(kThreadsSleepVariable); again && std::string(again) == kHeldBack) {
    ::setenv(kThreadsSleepVariable, kAsItWas, 1);
    set_interrupts(SIG_UNBLOCK);
  }
  const std::string verb = argc > 1 ? argv[1] : "";
  if (std::find(kVerbs.begin(), kVerbs.end(), verb) == kVerbs.end()) return;
  for (const char* const name : {kVariable, "GOMP_SPINCOUNT", "KMP_BLOCKTIME"})
    if (std::getenv(name)) return;
  if (has_word("-h", argc, argv) || has_word("--help", argc, argv)) return;
  if (const char* const threads = std::getenv("OMP_NUM_THREADS"); threads && std::string(threads) == "1")
    return;  // No thread waits for another.
  // Threads of each rank, and ranks that are started here: with one thread for each rank no thread waits. --layout auto may choose one
  // worker.
  const int64_t asked = number_behind("--threads", argc, argv);
  const int64_t ranks = has_word("auto", argc, argv) ? 1 : std::max<int64_t>(1, number_behind("--workers", argc, argv));
  const int64_t threads = asked > 0 ? asked : std::max<int64_t>(1, num_usable_cores() / ranks);
  if (threads == 1 || num_running_elsewhere() + threads * ranks <= ::sysconf(_SC_NPROCESSORS_ONLN)) return;
  ::setenv(kVariable, "passive", 1);
  const bool holds_back = !set_interrupts(SIG_BLOCK);
  ::setenv(kThreadsSleepVariable, holds_back ? kHeldBack : kAsItWas, 1);  // A training reports it.
  ::execv(program_path().c_str(), argv);
  if (holds_back) set_interrupts(SIG_UNBLOCK);
  ::unsetenv(kVariable);
  ::unsetenv(kThreadsSleepVariable);
}

}  // namespace cohort
