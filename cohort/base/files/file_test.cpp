#include "cohort/base/files/file.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/text.h"

using namespace cohort;

namespace {}  // namespace

TEST_CASE("write_fully goes on after EINTR and short writes and stops at errors") {
  const std::string data = "the quick brown fox jumps over the lazy dog";
  for (size_t limit = 1; limit <= data.size() + 1; ++limit) {
    std::string got;
    int calls = 0;
    write_fully(
        [&](const void* part, size_t size) -> long {
          if (++calls % 3 == 1) {
            errno = EINTR;
            return -1;
          }
          const size_t take = std::min(size, limit);
          got.append(static_cast<const char*>(part), take);
          return static_cast<long>(take);
        },
        data.data(), data.size(), "x");
    CHECK(got == data);
  }
  const auto full = [](const void*, size_t) -> long {
    errno = ENOSPC;
    return -1;
  };
  const std::string text = error_of([&] { write_fully(full, "abc", 3, "some/file"); }, ErrorCode::kFailed);
  CHECK(contains(text, "some/file"));
  CHECK(contains(text, std::strerror(ENOSPC)));
  CHECK(
      contains(error_of([&] { write_fully([](const void*, size_t) { return 0L; }, "abc", 3, "f"); }, ErrorCode::kFailed), "0 of 3 bytes"));
}

TEST_CASE("write_all reports a full device") {
  const UniqueDescriptor full = open_file("/dev/full", O_WRONLY);
  CHECK(contains(error_of([&] { write_all(full.get(), "abc", 3, "/dev/full"); }, ErrorCode::kFailed), std::strerror(ENOSPC)));
}

TEST_CASE("read_small_file bounds what it reads and refuses what is no file") {
  TemporaryFolder folder;
  const std::string path = folder / "a";
  write_file_atomically(path, std::string("he\0lo", 5));
  CHECK(read_small_file(path, 5) == std::string("he\0lo", 5));
  CHECK(contains(error_of([&] { read_small_file(path, 4); }, ErrorCode::kBadInput), "5 bytes, at most 4"));
  CHECK(contains(error_of([&] { read_small_file("/proc/self/status", 10); }, ErrorCode::kBadInput), "more than the 10 bytes"));
  CHECK(read_small_file("/proc/self/status", 1 << 20).size() > 10);
  CHECK(contains(error_of([&] { read_small_file(folder / "none", 4); }, ErrorCode::kBadInput), std::strerror(ENOENT)));
  CHECK(contains(error_of([&] { read_small_file(folder.path(), 4); }, ErrorCode::kBadInput), "not a regular file"));
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(contains(error_of([&] { read_small_file(folder / "pipe", 4); }, ErrorCode::kBadInput), "not a regular file"));
  write_file_atomically(folder / "empty", "");
  CHECK(read_small_file(folder / "empty", 0).empty());
}

TEST_CASE("a name that is too long is bad input, for writing too") {
  const TemporaryFolder folder;
  const std::string name = folder / std::string(300, 'a');
  for (const int flags : {O_RDONLY, O_WRONLY | O_CREAT})
    CHECK(error_of([&] { open_file(name, flags); }, ErrorCode::kBadInput).find("too long") != std::string::npos);
}

TEST_CASE("write_file_atomically replaces and leaves no temporary name") {
  TemporaryFolder folder;
  write_file_atomically(folder / "a", "one");
  write_file_atomically(folder / "a", "two");
  CHECK(read_small_file(folder / "a", 10) == "two");
  size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path())) ++entries;
  CHECK(entries == 1);
  REQUIRE(::mkdir((folder / "taken").c_str(), 0700) == 0);
  CHECK_THROWS_AS(write_file_atomically(folder / "taken", "x"), Error);
  CHECK_THROWS_AS(write_file_atomically(folder / "none/x", "x"), Error);
  entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path())) ++entries;
  CHECK(entries == 2);
}

TEST_CASE("UniqueDescriptor closes exactly once") {
  TemporaryFolder folder;
  UniqueDescriptor a = open_file(folder / "a", O_WRONLY | O_CREAT);
  const int number = a.get();
  UniqueDescriptor b = std::move(a);
  CHECK(!a);
  CHECK(b.get() == number);
  CHECK(::fcntl(number, F_GETFD) == FD_CLOEXEC);
  UniqueDescriptor& alias = b;
  b = std::move(alias);
  CHECK(::fcntl(number, F_GETFD) >= 0);
  b.reset();
  CHECK(::fcntl(number, F_GETFD) < 0);
}

TEST_CASE("parent_folder and names") {
  CHECK(parent_folder("a") == ".");
  CHECK(parent_folder("a/b") == "a");
  CHECK(parent_folder("a/b/") == "a");
  CHECK(parent_folder("/a") == "/");
  CHECK(parent_folder("/") == "/");
  CHECK(parent_folder("") == ".");
  CHECK(random_name().size() == 16);
  CHECK(temporary_name("x/y") != temporary_name("x/y"));
  CHECK(temporary_name("x/y").rfind("x/y.tmp.", 0) == 0);
}

TEST_CASE("TemporaryFolder removes what is in it") {
  std::string path;
  {
    TemporaryFolder folder;
    path = folder.path();
    std::filesystem::create_directories(folder / "a/b");
    write_file_atomically(folder / "a/b/c", "x");
  }
  CHECK(!std::filesystem::exists(path));
}
