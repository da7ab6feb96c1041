#include "cohort/world/launch.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "cohort/base/fail.h"
#include "cohort/world/status.h"
#include "cohort/world/stop.h"

namespace cohort {
namespace {

void sleep_ms(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

/// Numbers that forked ranks can write and the test can read.
struct Shared {
  std::atomic<int> values[8], num_arrived;
  static Shared& make() {
    void* map = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(map != MAP_FAILED);
    return *static_cast<Shared*>(map);
  }
  /// Once in each rank: returns when all have called it, and what each did before about signals holds.
  void meet(const World& world) {
    for (++num_arrived; num_arrived < world.size;) sleep_ms(1);
  }
};

TEST_CASE("ranks know who they are and all succeed") {
  Shared& shared = Shared::make();
  const int code = run_ranks({.num_ranks = 4}, [&](const World& world) {
    shared.values[world.rank] = world.rank + 10 * world.size;
    return world.launcher == "cohort" && world.local_size == 4 ? 0 : 1;
  });
  CHECK(code == 0);
  for (int rank = 0; rank < 4; ++rank) CHECK(shared.values[rank] == rank + 40);
}

TEST_CASE("the exit code is that of the rank that failed for a reason of its own") {
  Shared& shared = Shared::make();
  CHECK(run_ranks({.num_ranks = 3}, [&](const World& world) -> int {
          shared.meet(world);
          if (world.rank == 1) fail(ErrorCode::kBadInput, "bad file");
          sleep_ms(100);
          fail(ErrorCode::kEnvironment, "lost rank 1");
        }) == 2);
  CHECK(run_ranks({.num_ranks = 2}, [](const World& world) { return world.rank == 0 ? 0 : 1; }) == 1);
}

TEST_CASE("a killed rank ends the job with code 4, and ranks that hang are ended") {
  Shared& shared = Shared::make();
  const int code = run_ranks({.num_ranks = 3, .grace_seconds = 0.3}, [&](const World& world) {
    shared.values[world.rank] = ::getpid();
    shared.meet(world);
    if (world.rank == 2) ::raise(SIGKILL);
    for (;;) ::pause();
    return 0;
  });
  CHECK(code == 4);
  for (int rank = 0; rank < 3; ++rank) CHECK(::kill(shared.values[rank], 0) != 0);
}

TEST_CASE("a signal to the launcher asks ranks to stop and makes exit code 130") {
  Shared& shared = Shared::make();
  const pid_t launcher = ::getpid();
  const int code = run_ranks({.num_ranks = 2}, [&](const World& world) {
    catch_stop_signals();
    shared.meet(world);
    if (world.rank == 0) ::kill(launcher, SIGINT);
    while (!stop_requested()) sleep_ms(5);
    return 130;
  });
  CHECK(code == 130);
}

TEST_CASE("ranks that end well although they were to stop are exit code 130 where more is to come") {
  const pid_t launcher = ::getpid();
  for (const bool is_one_of_many : {false, true}) {
    Shared& shared = Shared::make();
    const int code = run_ranks({.num_ranks = 2, .is_one_of_many = is_one_of_many}, [&](const World& world) {
      catch_stop_signals();
      shared.meet(world);
      if (world.rank == 0) ::kill(launcher, SIGINT);
      while (!stop_requested()) sleep_ms(5);
      return 0;
    });
    CHECK(code == (is_one_of_many ? 130 : 0));
  }
}

TEST_CASE("ranks that ignore the signal are ended after the limit") {
  Shared& shared = Shared::make();
  const pid_t launcher = ::getpid();
  const int code = run_ranks({.num_ranks = 2, .stop_seconds = 0.3}, [&](const World& world) {
    ::signal(SIGTERM, SIG_IGN);
    shared.meet(world);
    if (world.rank == 0) ::kill(launcher, SIGTERM);
    for (;;) ::pause();
    return 0;
  });
  CHECK(code == 130);
}

TEST_CASE("what else asks ranks to stop, and what was to be ignored does not") {
  const pid_t launcher = ::getpid();
  // Of a program that was started in the background or under nohup.
  struct Row {
    int signal;
    bool is_ignored;
    int code;
  };
  for (const auto& [signal, is_ignored, code] :
       {Row{SIGINT, true, 0}, Row{SIGHUP, true, 0}, Row{SIGHUP, false, 130}, Row{SIGUSR1, false, 130}, Row{SIGUSR2, false, 130}}) {
    CAPTURE(signal);
    Shared& shared = Shared::make();
    const auto before = ::signal(signal, is_ignored ? SIG_IGN : SIG_DFL);
    CHECK(run_ranks({.num_ranks = 2}, [&shared, launcher, number = signal, is_ignored](const World& world) {
            catch_stop_signals();
            shared.meet(world);
            if (world.rank == 0) ::kill(launcher, number), ::raise(number);
            for (int i = 0; (i < 60 || !is_ignored) && !stop_requested(); ++i) sleep_ms(5);
            return stop_requested() ? 130 : 0;
          }) == code);
    ::signal(signal, before);
  }
}

TEST_CASE("a rank that writes a checkpoint is not killed for that it does not stop") {
  Shared& shared = Shared::make();
  const pid_t launcher = ::getpid();
  const int code = run_ranks({.num_ranks = 2, .stop_seconds = 0.2}, [&](const World& world) {
    ::signal(SIGTERM, SIG_IGN);
    shared.meet(world);
    if (world.rank == 0) report_saving(1), ::kill(launcher, SIGTERM), sleep_ms(600), shared.values[2] = 1, report_saving(0);
    for (;;) ::pause();
    return 0;
  });
  CHECK(code == 130);
  CHECK(shared.values[2] == 1);
}

TEST_CASE("Ctrl-Z stops the ranks with their launcher, and what wakes it wakes them") {
  Shared& shared = Shared::make();
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    ::setpgid(0, 0);
    ::_exit(run_ranks({.num_ranks = 2}, [&](const World& world) {
      catch_stop_signals();
      while (!stop_requested()) ++shared.values[world.rank], sleep_ms(2);
      return 130;
    }));
  }
  const auto moves = [&] {
    const int before[] = {shared.values[0], shared.values[1]};
    for (int i = 0; i < 100 && (shared.values[0] == before[0] || shared.values[1] == before[1]); ++i) sleep_ms(10);
    return shared.values[0] > before[0] && shared.values[1] > before[1];
  };
  CHECK(moves());
  ::kill(launcher, SIGTSTP);
  int status = 0;
  CHECK(::waitpid(launcher, &status, WUNTRACED) == launcher);
  CHECK(WIFSTOPPED(status));
  sleep_ms(20);
  const int at = shared.values[0] + shared.values[1];
  sleep_ms(50);
  CHECK(shared.values[0] + shared.values[1] == at);
  ::kill(launcher, SIGCONT);
  CHECK(moves());
  ::kill(launcher, SIGTERM);
  CHECK(::waitpid(launcher, &status, 0) == launcher);
  CHECK(WEXITSTATUS(status) == 130);
}

TEST_CASE("a program that is not there is bad input") {
  CHECK_THROWS_WITH_AS(run_program({.num_ranks = 2}, {"./no-such-program"}), "cannot start './no-such-program': No such file or directory",
                       Error);
  CHECK(run_program({.num_ranks = 2}, {"no-such-program-anywhere"}) == 2);
  CHECK(run_program({.num_ranks = 2}, {"/bin/true"}) == 0);
  CHECK(run_program({.num_ranks = 2}, {"/bin/sh", "-c", "test $WORLD_SIZE = 2 && test $LOCAL_RANK = $RANK && test -n \"$MASTER_PORT\""}) ==
        0);
}

TEST_CASE("an error that nobody catches is the rank's own, with its code") {
  std::string failure;
  const auto body = [](const World& world) {
    if (world.rank == 1) std::thread([] { fail(ErrorCode::kInfeasible, "no plan"); }).join();
    for (;;) ::pause();
    return 0;
  };
  CHECK(run_ranks({.num_ranks = 2, .grace_seconds = 0.1, .failure = &failure}, body) == 3);
  CHECK(failure.starts_with("rank 1 (pid "));
  CHECK(failure.ends_with(") exited with code 3 before its first step: no plan; the other ranks were ended"));
}

TEST_CASE("steps are named of ranks that count them, and of several that failed the first is named") {
  std::string failure;
  CHECK(run_program({.num_ranks = 1, .failure = &failure}, {"/bin/sh", "-c", "kill -9 $$"}) == 4);
  CHECK(failure.ends_with(") was killed by signal 9 (SIGKILL)"));
  // Ranks that say nothing of the reason: rank 0 fails as it misses rank 1.
  CHECK(run_program({.num_ranks = 2, .failure = &failure}, {"/bin/sh", "-c", "test $RANK = 1 || sleep 0.4; exit $((3 + RANK))"}) == 4);
  CHECK(failure.starts_with("rank 1 (pid "));
  CHECK(failure.ends_with(") exited with code 4; the other ranks were ended"));
  CHECK(run_program({.num_ranks = 2, .failure = &failure}, {"/bin/sh", "-c", "test $RANK = 1 && exit 0; sleep 0.4; exit 3"}) == 3);
  CHECK(failure.starts_with("rank 0 (pid "));
  CHECK(failure.find(") exited with code 3; rank 1 (pid ") != std::string::npos);
  CHECK(failure.ends_with(") had left before it with code 0"));
}

TEST_CASE("forking from a process with threads is refused") {
  std::atomic<bool> end{false};
  std::thread other([&] {
    while (!end) sleep_ms(1);
  });
  CHECK_THROWS_WITH_AS(run_ranks({.num_ranks = 2}, [](const World&) { return 0; }), doctest::Contains("threads"), Error);
  end = true;
  other.join();
}

TEST_CASE("a failure's text is cut to the page, never beyond it") {
  StatusPage page = StatusPage::create(2);
  report_failure(page[1], 2, std::string(5000, 'x'), false);
  CHECK(page[1].error_code == 2);
  CHECK(std::string(page[1].message).size() == sizeof page[1].message - 1);
  CHECK(page[0].error_code == 0);
  report_failure(page[0], 2, std::string(1980, 'x') + " and something more", false);
  CHECK(std::string(page[0].message) == std::string(1980, 'x') + " and...");
}

}  // namespace
}  // namespace cohort
