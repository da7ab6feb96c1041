// Advice after a run that ran out of memory. This process may have no memory left and has threads, so nothing is measured in it: the
// program starts itself again as `cohort plan --ladder` with the options of the run, which measures a few samples in ranks and
// extrapolates.

#include "cohort/cli/options/memory_advice.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <fstream>
#include <vector>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/verb.h"
#include "cohort/comm/shm/memory_count.h"
#include "cohort/job/option_rules.h"
#include "cohort/world/process.h"
#include "cohort/world/stop.h"

namespace cohort {
namespace {

constexpr double kMostSeconds = 25, kGraceSeconds = 3;
/// Set in the child: a user's program that runs the same verb whatever its arguments must not start itself without end.
constexpr const char* kStartedAgain = "COHORT_STARTED_FOR_LADDER";

/// The arguments of `plan --ladder`, with the settings of the run that it reads.
std::vector<std::string> ladder_words(const Job& job) {
  const Config& config = job.config;
  std::vector<std::string> words = {"plan", "--ladder", "--model", config.model, "--data", config.data};
  const auto add = [&](const char* option, const std::string& value) { words.insert(words.end(), {option, value}); };
  add("--workers", std::to_string(job.num_ranks()));
  add("--global-batch", std::to_string(config.global_batch));
  for (const char* name : {"optimizer", "precision", "weights", "context", "image-size", "bucket-bytes", "memory-limit"}) {
    const Setting& setting = *find_setting(name);
    if (is_given(config, setting)) add(concat("--", name).c_str(), plain_value(setting, config));
  }
  if (config.accumulate > 1) add("--accumulate", std::to_string(config.accumulate));
  const std::string& layout = config.layout;
  const bool is_typed = layout.find('=') != std::string::npos && !layout.starts_with("{") && !is_layout_file(layout);
  if (is_typed && is_step(job.layout.sync)) add("--layout", layout);  // Other modes are not planned.
  if (config.json) words.emplace_back("--json");
  return words;
}

/// Replaces the child process.
[[noreturn]] void become_ladder(const std::vector<std::string>& words) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  restore_default_stop_signals();
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  std::ofstream("/proc/self/oom_score_adj") << 1000;
  // If it fails, the parent prints a line of its own.
  const int dev_null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  ::dup2(dev_null, STDERR_FILENO);
  std::vector<char*> argv = {const_cast<char*>("cohort")};
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  ::setenv(kStartedAgain, "1", 1);
  ::execv(program_path().c_str(), argv.data());
  ::_exit(127);
}

/// Returns the exit code of the child, -1 if a signal ended it.
int run_ladder(const std::vector<std::string>& words) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) return -1;
  if (child == 0) become_ladder(words);
  const double start = steady_seconds();
  double asked_at = 0;
  bool was_stopped = stop_requested();
  for (int status = 0;;) {
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (ended < 0 && errno != EINTR) return -1;
    const double now = steady_seconds();
    if (asked_at == 0 && (now - start > kMostSeconds || (stop_requested() && !was_stopped))) asked_at = now, ::kill(child, SIGTERM);
    if (asked_at > 0 && now - asked_at > kGraceSeconds) ::kill(child, SIGKILL);
    const timespec poll{0, 50'000'000};
    ::nanosleep(&poll, nullptr);
  }
}

}  // namespace

bool is_memory_death(const std::string& failure) {
  for (const char* words : {kMemoryLimitReached, "the kernel ran out of memory", "an allocation was refused", "not enough memory"})
    if (failure.find(words) != std::string::npos) return true;
  return false;
}

void advise_on_memory(const Job& job, bool can_measure) {
  try {
    const std::vector<std::string> words = ladder_words(job);
    if (can_measure && job.config.plugin.empty() && has_verb("plan") && !std::getenv(kStartedAgain)) {
      if (!job.config.json && !job.config.quiet) log_info("looking for what would fit, some seconds; Ctrl-C ends it");
      if (const int code = run_ladder(words); code == 0 || code == static_cast<int>(ErrorCode::kInfeasible)) return;
    }
    std::vector<std::string> quoted = {"cohort"};
    for (const std::string& word : words)
      if (word != "--json") quoted.push_back(shell_quoted(word));
    log_info("for layouts that fit into memory, with the options to type, run `" + join(quoted, " ") + "`");
  } catch (const std::exception&) {
    // The error of the run itself has been printed.
  }
}

}  // namespace cohort
