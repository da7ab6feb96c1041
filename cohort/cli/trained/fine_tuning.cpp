// Fine-tuning: this program starts itself again as `train`, so that layouts, ranks, Ctrl-C and messages work as in any training. A command
// that was interrupted resumes from the training's last checkpoint.
#include "cohort/cli/trained/compress.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/log.h"
#include "cohort/train/run_folder.h"
#include "cohort/world/process.h"
#include "cohort/world/stop.h"
#include "cohort/world/world.h"

namespace cohort {
namespace {

/// Replaces the child process by the training, whose standard output goes to stderr: stdout belongs to this verb.
[[noreturn]] void become_training(const std::vector<std::string>& words) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  restore_default_stop_signals();
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  std::vector<char*> argv = {const_cast<char*>("cohort")};
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  ::execv(program_path().c_str(), argv.data());
  ::_exit(127);
}

volatile sig_atomic_t training_pid = 0, stop_signal = 0;

/// Forwards a signal that was sent to this process only; the training receives those of a terminal itself.
void forward_signal(int signal, siginfo_t* info, void*) {
  stop_signal = signal;
  if (info->si_code == SI_USER && training_pid > 0) ::kill(static_cast<pid_t>(training_pid), signal);
}

/// While it lives, stop signals end the training, which saves a checkpoint, and this process after it.
class SignalsForTraining {
 public:
  explicit SignalsForTraining(pid_t child) {
    training_pid = child;
    struct sigaction action{};
    action.sa_sigaction = forward_signal;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    for (const int signal : stop_signals()) ::sigaction(signal, &action, &before_.emplace_back(signal, Action{}).second);
  }
  ~SignalsForTraining() {
    for (const auto& [signal, before] : before_) ::sigaction(signal, &before, nullptr);
    training_pid = 0;
  }
  SignalsForTraining(const SignalsForTraining&) = delete;
  SignalsForTraining& operator=(const SignalsForTraining&) = delete;

 private:
  using Action = struct sigaction;
  std::vector<std::pair<int, Action>> before_;
};

/// Returns the exit code of the training, which has reported its error.
int run_training(const std::vector<std::string>& words, const std::string& verb) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) fail_errno(ErrorCode::kEnvironment, "start", "the training", errno);
  if (child == 0) become_training(words);
  const SignalsForTraining signals(child);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  if (WTERMSIG(status) == stop_signal) return static_cast<int>(ErrorCode::kInterrupted);  // It had not installed its handler yet.
  fail(ErrorCode::kFailed, verb, ": the training was killed by signal ", WTERMSIG(status),
       "; the same command goes on from its last checkpoint");
}

}  // namespace

std::vector<std::string> fine_tuning_settings() { return {"steps", "lr", "layout", "workers", "run"}; }

FineTuningRequest fine_tuning_request(const Arguments& arguments, const std::string& verb) {
  if (world_from_environment().launcher != "none")
    fail(ErrorCode::kBadInput, verb, " starts its training's ranks itself; start it without a launcher, with --workers N");
  const Config& config = arguments.config;
  FineTuningRequest request{.verb = verb,
                            .how = {},
                            .prune = {},
                            .quantize_aware = {},
                            .steps = config.steps,
                            .lr = config.lr,
                            .run = config.run,
                            .layout = {},
                            .data = {},
                            .plugin = {},
                            .workers = config.workers,
                            .threads = config.threads,
                            .quiet = config.json};
  if (arguments.was_given("layout")) request.layout = config.layout;
  if (arguments.was_given("data")) request.data = config.data;
  if (arguments.was_given("plugin")) request.plugin = config.plugin;
  return request;
}

void log_what_is_left_out(const TrainedFile& file) {
  if (!file.config().teacher.empty()) log_info(concat(file.given(), " was distilled from a teacher, and this training has the plain loss"));
}

int run_fine_tuning(const Config& config, FineTuningState state, const std::string& verb) {
  if (state == FineTuningState::kDone) return 0;
  if (const int code = run_training(fine_tuning_command(config, state), verb); code != 0) {
    if (holds_run(config.run))
      log_info(concat(verb, ": nothing is written yet; the same command goes on with ", config.run, " and then writes it"));
    return code;
  }
  const int64_t step = TrainedFile::open(config.run).step();
  if (step < config.steps)
    fail(ErrorCode::kFailed, config.run, " ended after ", step, " of ", config.steps, " steps; the same command goes on");
  return 0;
}

}  // namespace cohort
