#include "cohort/base/files/file.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cerrno>
#include <fstream>
#include <string>

#include "cohort/base/fail.h"

using namespace cohort;

namespace {

std::string content(const std::string& path) { return read_small_file(path, size_t{1} << 22); }

/// Files of this process may not grow over `bytes` while it lives: the system then takes a part of a write, as a disk that fills up does.
class SizeLimit {
 public:
  explicit SizeLimit(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &now) == 0);
  }
  ~SizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, SIG_DFL);
  }
  SizeLimit(const SizeLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace

TEST_CASE("AppendFile: a piece is in the file whole or not at all, and the next one follows what is whole") {
  const TemporaryFolder folder;
  AppendFile file(folder / "lines");
  CHECK(file.append("first line\n") == 0);
  {
    const SizeLimit limit(16);  // Of the second line 5 bytes fit.
    CHECK(file.append("second line\n") == EFBIG);
    CHECK(content(folder / "lines") == "first line\n");
    CHECK(file.append("none\n") == 0);  // Exactly what fits.
    CHECK(file.append("x\n") == EFBIG);
  }
  CHECK(file.append("last line\n") == 0);
  CHECK(file.sync() == 0);
  CHECK(content(folder / "lines") == "first line\nnone\nlast line\n");
  CHECK(file.bytes() == 26);
}

TEST_CASE("AppendFile: a full device is an answer, not an exception") {
  AppendFile file("/dev/full");
  CHECK(file.append("line\n") == ENOSPC);
  CHECK_THROWS_AS(AppendFile("/nowhere/at/all"), Error);
}

TEST_CASE("cut_torn_line: what stands after the last line feed goes") {
  const TemporaryFolder folder;
  const std::string path = folder / "lines", block(5000, 'x');
  for (const auto& [before, after] : {std::pair<std::string, std::string>{"", ""},
                                      {"torn", ""},
                                      {"one\n", "one\n"},
                                      {"one\ntorn", "one\n"},
                                      {"one\n\n", "one\n\n"},
                                      {"one\n" + block, "one\n"},
                                      {block + "\n" + block, block + "\n"},
                                      {block, ""}}) {
    std::ofstream(path, std::ios::trunc) << before;
    cut_torn_line(path);
    CHECK(content(path) == after);
  }
  CHECK_NOTHROW(cut_torn_line(folder / "missing"));
}
