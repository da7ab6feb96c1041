#include "cohort/world/launch.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>

#include "cohort/base/fail.h"
#include "cohort/base/system/machine.h"
#include "cohort/base/text/log.h"
#include "cohort/world/status.h"
#include "cohort/world/stop.h"
#include "cohort/world/supervisor.h"
#include "cohort/world/uncaught.h"

namespace cohort {
namespace {

int make_store_file() {
  const int fd = ::memfd_create("cohort-store", 0);
  if (fd < 0) fail(ErrorCode::kEnvironment, "memfd_create failed: ", std::strerror(errno));
  return fd;
}

/// In a fresh child: die with the launcher, and with its signal handling undone.
void become_rank(pid_t launcher, const sigset_t& signals_before) {
  ::setpgid(0, 0);  // A process group of its own, so that its own children can be ended with it.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launcher) ::_exit(4);  // The launcher died between fork and prctl.
  ::sigprocmask(SIG_SETMASK, &signals_before, nullptr);
}

World world_of_rank(const World& launcher, int rank, int num_ranks, int store_fd, int status_fd) {
  World world = launcher;
  world.launcher = "cohort";
  world.rank = world.local_rank = rank;
  world.size = world.local_size = num_ranks;
  world.store_fd = store_fd;
  world.status_fd = status_fd;
  return world;
}

/// A port that is free now, for programs that open their own TCP store.
int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const bool ok = fd >= 0 && ::bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  if (fd >= 0) ::close(fd);
  if (!ok) fail(ErrorCode::kEnvironment, "no free port on 127.0.0.1: ", std::strerror(errno));
  return ntohs(address.sin_port);
}

/// A rank is in a background process group, which reading the terminal would suspend: it reads an end of file instead.
void leave_terminal() {
  if (!::isatty(STDIN_FILENO)) return;
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing < 0 || ::dup2(nothing, STDIN_FILENO) < 0) return;
  ::close(nothing);
}

/// OMP_NUM_THREADS for each rank, "" if the environment has it. OpenMP's default is all cores in every rank, which is several times slower.
std::string num_rank_threads(int num_ranks) {
  if (const char* set = std::getenv("OMP_NUM_THREADS")) {
    log_info(concat(num_ranks, num_ranks > 1 ? " ranks" : " rank", ", OMP_NUM_THREADS=", set, " as in the environment"));
    return "";
  }
  const int cores = num_usable_cores(), threads = std::max(1, cores / num_ranks);
  log_info(concat(num_ranks, num_ranks > 1 ? " ranks" : " rank", " on ", cores, cores > 1 ? " cores" : " core",
                  ": OMP_NUM_THREADS=", threads, num_ranks > 1 ? " for each" : ""));
  return std::to_string(threads);
}

/// Result of launch(): in a rank its number, in the launcher (rank -1) the exit code of the job.
struct Launched {
  int rank = -1, store_fd = -1, status_fd = -1;
  int exit_code = 0;
};

/// Starts all ranks, and supervises them in the calling process. `count_from_start`: they count as training from the beginning, rather than
/// from their first report.
Launched launch(const LaunchOptions& options, bool count_from_start) {
  StatusPage status = StatusPage::create(options.num_ranks);
  const int store_fd = make_store_file();
  std::unique_ptr<Supervisor> supervisor = make_supervisor(status, options);
  const pid_t launcher = ::getpid();
  std::fflush(nullptr);  // Otherwise every rank would write buffered output again.
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    if (count_from_start) count_steps(status[rank]);
    const pid_t pid = ::fork();
    if (pid < 0) {
      const std::string why = std::strerror(errno);
      supervisor->kill_all();
      ::close(store_fd);
      fail(ErrorCode::kEnvironment, "could not start rank ", rank, " of ", options.num_ranks, ": ", why,
           "; look at ulimit -u, and at pids.max of the container");
    }
    if (pid == 0) {
      become_rank(launcher, supervisor->signals_before());
      // Not destroyed in a rank: that would undo become_rank().
      [[maybe_unused]] const Supervisor* const kept = supervisor.release();
      status[rank].pid = ::getpid();
      return {rank, store_fd, ::dup(status.fd()), 0};
    }
    ::setpgid(pid, pid);  // In both processes, so that it holds whichever runs first.
    status[rank].pid = pid;
    supervisor->add(rank, pid);
  }
  ::close(store_fd);
  const int code = supervisor->wait();
  if (options.failure) *options.failure = supervisor->failure();
  return {-1, -1, -1, code};
}

void check_can_fork(int num_ranks) {
  if (const int threads = num_threads_of_process(); threads != 1)
    fail(ErrorCode::kEnvironment, "cannot fork ranks: this process already has ", threads,
         " threads; start none before run_cli() or init(), or start the ranks with `cohort launch -n ", num_ranks, " PROGRAM ...`");
}

}  // namespace

int num_threads_of_process() {
  int threads = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ++threads;
  return threads;
}

int guarded(const World& world, const std::function<int(const World&)>& body, std::string* failure) {
  handle_uncaught_exceptions(world);
  if (world.status_fd >= 0) count_steps(StatusPage::open(::dup(world.status_fd), world.size)[world.rank]);
  const auto failed = [&](int code, const std::string& text) {
    if (code == static_cast<int>(ErrorCode::kInterrupted)) {
      if (world.status_fd < 0) log_info(text);
      return code;
    }
    if (failure) *failure = text;
    if (report_to_launcher(world.status_fd, world.rank, world.size, code, text)) return code;
    const auto print = [&] { log_failure(code, text); };
    code == static_cast<int>(ErrorCode::kBadInput) ? print_once(world, text, print) : print();
    return code;
  };
  try {
    const UnfinishedWork unfinished;
    return body(world);
  } catch (const Error& error) {
    return failed(static_cast<int>(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return failed(1, name_settings("out of memory: an allocation was refused; use a smaller --global-batch, more workers or --accumulate"));
  } catch (const std::exception& error) {
    const ExitStatus ending = exit_status_of(error);
    return failed(ending.code, ending.text);
  }
}

int run_ranks(const LaunchOptions& options, const std::function<int(const World&)>& body) {
  check_can_fork(options.num_ranks);
  const World launcher = world_from_environment();
  const Launched here = launch(options, /*count_from_start=*/true);
  if (here.rank < 0) return here.exit_code;
  set_log_rank(here.rank);
  const int code = guarded(world_of_rank(launcher, here.rank, options.num_ranks, here.store_fd, here.status_fd), body);
  std::fflush(stdout);
  std::fflush(stderr);
  // No static destructors: LibTorch's thread pools were started after the fork, and nothing is left to write.
  ::_exit(code);
}

World become_ranks(const LaunchOptions& options) {
  check_can_fork(options.num_ranks);
  const World launcher = world_from_environment();
  const Launched here = launch(options, /*count_from_start=*/false);
  if (here.rank < 0) ::_exit(here.exit_code);
  set_log_rank(here.rank);
  leave_terminal();
  return world_of_rank(launcher, here.rank, options.num_ranks, here.store_fd, here.status_fd);
}

int run_program(const LaunchOptions& options, const std::vector<std::string>& arguments) {
  if (arguments.empty()) fail(ErrorCode::kBadInput, "launch: no program given; use: cohort launch -n 2 ./program --its-options");
  // Checked before anything is logged about ranks. A name without a folder is searched by execvp().
  if (arguments[0].find('/') != std::string::npos && ::access(arguments[0].c_str(), X_OK) != 0)
    fail(ErrorCode::kBadInput, "cannot start '", arguments[0], "': ", std::strerror(errno));
  const std::string port = std::to_string(free_port()), threads = num_rank_threads(options.num_ranks);
  const Launched here = launch(options, /*count_from_start=*/false);
  if (here.rank < 0) return here.exit_code;
  const std::string size = std::to_string(options.num_ranks), number = std::to_string(here.rank);
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, std::string>>{{"RANK", number},
                                                                  {"LOCAL_RANK", number},
                                                                  {"GROUP_RANK", "0"},
                                                                  {"ROLE_RANK", number},
                                                                  {"WORLD_SIZE", size},
                                                                  {"LOCAL_WORLD_SIZE", size},
                                                                  {"ROLE_WORLD_SIZE", size},
                                                                  {"MASTER_ADDR", "127.0.0.1"},
                                                                  {"MASTER_PORT", port},
                                                                  {"COHORT_LAUNCHER", std::to_string(::getppid())},
                                                                  {"COHORT_STORE_FD", std::to_string(here.store_fd)},
                                                                  {"COHORT_STATUS_FD", std::to_string(here.status_fd)}})
    ::setenv(name, value.c_str(), 1);
  leave_terminal();
  if (!threads.empty()) ::setenv("OMP_NUM_THREADS", threads.c_str(), 1);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  const int error = errno;
  StatusPage page = StatusPage::open(here.status_fd, options.num_ranks);
  count_steps(page[here.rank]);  // So that it is reported as bad input of all ranks.
  report_failure(page[here.rank], 2, concat("cannot start '", arguments[0], "': ", std::strerror(error)), false);
  ::_exit(2);
}

}  // namespace cohort
