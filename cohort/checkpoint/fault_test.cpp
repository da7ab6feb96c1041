// Every call of a save fails once: with a full disk, a broken disk, an interrupted call, a short write.

#include <doctest/doctest.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "cohort/checkpoint/names.h"
#include "tests/support/checkpoint_files.h"
#include "tests/support/text.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

namespace fs = std::filesystem;

/// Names that no complete save leaves.
std::vector<std::string> leftovers(const std::string& folder) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (contains(name, ".tmp.") || contains(name, ".old.")) found.push_back(name);
  }
  return found;
}

/// Saves step 100 over a folder with steps 25 and 50 (or, `again`, with 50 and 100), the k-th call failing, for every k.
void fail_everywhere(int reason, bool again) {
  int calls = 1;
  int errors = 0, warnings = 0;
  for (int at = 0; at < calls; ++at) {
    MemoryFolder space;
    const std::string folder = space / "checkpoints";
    if (!again) save(folder, 25, 2500, "first");
    save(folder, 50, 5000, "first");
    if (again) save(folder, 100, 10000, "first");
    FaultyIo io(at, reason);
    const int before = latest_mark(folder);
    std::string error;
    std::vector<std::string> warned;
    try {
      warned = save(folder, 100, 20000, "second", &io);
    } catch (const Error& caught) {
      CHECK(caught.code() == ErrorCode::kFailed);
      error = caught.what();
    }
    CAPTURE(at);
    CAPTURE(error);
    CAPTURE(io.failed_path());
    REQUIRE((io.hit() || at + 1 >= io.calls()));
    calls = std::max(calls, io.calls());
    const int after = latest_mark(folder);
    const std::string text = error.empty() && !warned.empty() ? warned[0] : error;
    if (!text.empty()) {
      CHECK(contains(text, io.failed_path()));
      CHECK(contains(text, std::strerror(reason)));
    }
    if (error.empty()) {
      CHECK(after == 20000);
      warnings += static_cast<int>(warned.size());
      if (warned.empty()) CHECK(leftovers(folder).empty());
    } else {
      CHECK((after == before || after == 20000));
      ++errors;
    }
    // Nothing half-visible: what has a final name is whole, and the next save clears whatever was left.
    for (const std::string& name : list_checkpoints(folder)) {
      if (!contains(name, ".old.")) CHECK_NOTHROW(Checkpoint::open(folder + "/" + name));
    }
    CHECK(save(folder, 150, 15000, "second").empty());
    CHECK(latest_mark(folder) == 15000);
    CHECK(leftovers(folder).empty());
  }
  CHECK(calls > 30);
  if (reason == EINTR || reason == 0) {
    CHECK(errors == 0);
    CHECK(warnings == 0);
  } else {
    CHECK(errors > 15);
    CHECK(warnings > 3);
  }
}

}  // namespace

TEST_CASE("a full disk at any call is an error with path and cause, and the checkpoint before loads") {
  fail_everywhere(ENOSPC, false);
  fail_everywhere(ENOSPC, true);
}

TEST_CASE("a broken disk at any call is an error with path and cause, and the checkpoint before loads") {
  fail_everywhere(EIO, false);
  fail_everywhere(EIO, true);
}

TEST_CASE("interrupted calls are repeated and short writes go on") {
  fail_everywhere(EINTR, false);
  fail_everywhere(0, false);
}

TEST_CASE("when the disk stays broken nothing but the temporary folder is left, and abandon does not throw") {
  for (int at = 0; at < 60; at += 3) {
    MemoryFolder space;
    const std::string folder = space / "checkpoints";
    save(folder, 50, 5000, "first");
    FaultyIo io(at, EIO, 1'000'000);
    try {
      save(folder, 100, 10000, "second", &io);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kFailed);
    }
    const int mark = latest_mark(folder);
    CHECK((mark == 5000 || mark == 10000));
  }
}
