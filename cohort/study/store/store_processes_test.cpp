// The store with more than one process: kills, a second writer, readers, a full disk, a folder that can only be read.

#include <doctest/doctest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <utility>

#include "cohort/base/files/file.h"
#include "cohort/study/store/sqlite.h"
#include "cohort/study/store/store.h"
#include "tests/support/skip.h"
#include "tests/support/stored_study.h"

using namespace cohort;
using namespace cohort::study;

namespace {

/// Runs `body` in a forked process ; what it writes to its descriptor, or the text of its error, comes out of `output`.
struct Forked {
  Forked(pid_t process, int descriptor) : pid(process), output(descriptor) {}
  ~Forked() {
    if (pid < 0) return;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  Forked(const Forked&) = delete;
  Forked& operator=(const Forked&) = delete;
  pid_t pid;
  UniqueDescriptor output;
};
Forked fork_writer(const std::function<void(int descriptor)>& body) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::close(ends[0]);
    try {
      body(ends[1]);
    } catch (const std::exception& error) {
      const std::string text = error.what();
      [[maybe_unused]] const auto written = ::write(ends[1], text.data(), text.size());
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  return {pid, ends[0]};
}
std::string read_to_end(int descriptor) {
  std::string text;
  char buffer[4096];
  for (ssize_t size = 0; (size = ::read(descriptor, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(size));
  return text;
}
void wait_for(Forked& child) { REQUIRE(::waitpid(std::exchange(child.pid, -1), nullptr, 0) > 0); }

}  // namespace

TEST_CASE("store: one writes, others read meanwhile; a second writer is told who") {
  const MemoryFolder folder;
  const std::string path = folder / "study";
  Store writer = Store::open(path, small_spec());
  writer.add(8, trial_of(0, 4));
  const std::string mine = error_of([&] { Store::open(path, small_spec()); });
  CHECK(mine.find("the study in " + path + " is in use by process " + std::to_string(::getpid()) + " on ") == 0);
  const Store reader = Store::open_readonly(path);
  CHECK(reader.trials(8).size() == 1);
  writer.add(8, trial_of(1, 4));
  CHECK(reader.trials(8).size() == 2);
  Forked child = fork_writer([&](int descriptor) {
    const std::string found = std::to_string(Store::open_readonly(path).read().batches[0].trials.size());
    write_all(descriptor, found.data(), found.size(), "pipe");
    Store::open(path, small_spec());
  });
  const std::string text = read_to_end(child.output.get());
  wait_for(child);
  CHECK(text.find("2the study in " + path + " is in use by process " + std::to_string(::getpid())) == 0);
}

TEST_CASE("store: killed at any instant, every trial that was reported is there, and none in part") {
  // Each round a process adds trials of growing ids and reports them. One round of three begins anew and is killed while it makes the file;
  // the others are killed within milliseconds after their first trial, so while they write one of the next.
  std::mt19937 random(7);
  const int num_rounds = 36;
  int num_reported_in_all = 0, num_killed_before_any = 0;
  std::unique_ptr<MemoryFolder> folder;
  std::set<int64_t> reported;
  for (int round = 0; round < num_rounds; ++round) {
    if (round % 3 == 0) {
      folder = std::make_unique<MemoryFolder>();
      reported.clear();
    }
    const std::string path = *folder / "study";
    const int64_t first = static_cast<int64_t>(round) * 10'000;
    Forked child = fork_writer([&](int descriptor) {
      Store store = Store::open(path, small_spec());
      for (int64_t id = first;; ++id) {
        store.add(8, trial_of(id, 1 + id % 300, id % 4 == 0 ? 1.0 : 0.0));
        write_all(descriptor, &id, sizeof id, "pipe");
      }
    });
    pollfd ready{child.output.get(), POLLIN, 0};
    if (round % 3 != 0) REQUIRE(::poll(&ready, 1, 20'000) == 1);
    ::usleep(static_cast<useconds_t>(random() % (round % 3 == 0 ? 3'000 : 8'000)));
    REQUIRE(::kill(child.pid, SIGKILL) == 0);
    const std::string ids = read_to_end(child.output.get());
    wait_for(child);
    REQUIRE(ids.size() % sizeof(int64_t) == 0);
    for (size_t at = 0; at < ids.size(); at += sizeof(int64_t)) {
      int64_t id = 0;
      ids.copy(reinterpret_cast<char*>(&id), sizeof id, at);
      reported.insert(id);
    }
    if (reported.empty()) ++num_killed_before_any;
    num_reported_in_all += static_cast<int>(ids.size() / sizeof(int64_t));
    Store store = Store::open(path, small_spec());  // Whatever is there can be gone on with.
    std::set<int64_t> present;
    const StudyData study = store.read();
    for (const Trial& trial : study.batches[0].trials) {
      present.insert(trial.id);
      CHECK(same(trial, trial_of(trial.id, 1 + trial.id % 300, trial.id % 4 == 0 ? 1.0 : 0.0)));
    }
    for (const int64_t id : reported) CHECK(present.contains(id));
    CHECK(present.size() <= reported.size() + static_cast<size_t>(round % 3) + 1);  // At most one a kill was not reported any more.
  }
  CHECK(num_reported_in_all > num_rounds);
  MESSAGE(num_reported_in_all << " trials reported, " << num_killed_before_any << " rounds killed before any");
}

TEST_CASE("store: a full disk is one sentence, and what was added before is safe") {
  const MemoryFolder folder;
  const std::string path = folder / "study";
  Forked child = fork_writer([&](int descriptor) {
    ::signal(SIGXFSZ, SIG_IGN);
    Store store = Store::open(path, small_spec());
    const rlimit limit{200'000, 200'000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return;
    for (int64_t id = 0;; ++id) {
      store.add(8, trial_of(id, 200));
      const std::string digits = std::to_string(id) + " ";
      write_all(descriptor, digits.data(), digits.size(), "pipe");
    }
  });
  const std::string text = read_to_end(child.output.get());
  wait_for(child);
  const size_t sentence = text.find(
      "cannot write " + path + "/study.db: over a quota or a limit of file sizes, or the disk fails; all that was recorded before is safe");
  INFO(text);
  REQUIRE(sentence != std::string::npos);
  const auto num_added = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(sentence), ' ');
  CHECK(num_added > 2);
  CHECK(static_cast<int64_t>(read_study(path).batches[0].trials.size()) == num_added);
  CHECK_NOTHROW(Store::open(path, small_spec()).add(8, trial_of(9999, 200)));
}

TEST_CASE("store: a folder where nothing can be written is read, and refused to write") {
  if (!permissions_bind()) return;
  const MemoryFolder folder;
  const std::string path = folder / "study";
  {
    Store::open(path, small_spec()).add(8, trial_of(0, 4));
  }
  // As a killed writer leaves it, and without its log: the form of the file says write-ahead, and a reader can make no shared memory.
  {
    Database(path + "/study.db", Database::Mode::kWrite).execute("PRAGMA journal_mode = WAL");
  }
  ::chmod(folder.path().c_str(), 0755);
  ::chmod((path + "/study.db").c_str(), 0444);
  ::chmod(path.c_str(), 0555);
  Forked child = fork_writer([&](int descriptor) {
    if (::geteuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) return;  // The mode of a folder binds all but root.
    const std::string found = std::to_string(Store::open_readonly(path).read().batches[0].trials.size());
    write_all(descriptor, found.data(), found.size(), "pipe");
    Store::open(path, small_spec());
  });
  const std::string text = read_to_end(child.output.get());
  wait_for(child);
  ::chmod(path.c_str(), 0755);
  CHECK(text == "1cannot write into " + path + ": Permission denied");
}
