#include "cohort/base/files/writable_place.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>

#include "cohort/base/files/file.h"
#include "tests/support/errors.h"
#include "tests/support/skip.h"

namespace cohort {
namespace {

std::string refusal_of_folder(const std::string& folder) {
  return error_of([&] { check_writable_folder(folder); });
}
std::string refusal_of_file(const std::string& path) {
  return error_of([&] { check_writable_file(path); });
}

TEST_CASE("writable file: what is of another kind is not written over") {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::string& name) { return error_of([&] { check_holds_kind(folder / name, "<!doc", 0, "a page"); }); };
  write_file_atomically(folder / "page", "<!doctype html>");
  write_file_atomically(folder / "table", "a,b");
  write_file_atomically(folder / "empty", "");
  CHECK_NOTHROW(check_holds_kind(folder / "page", "<!doc", 0, "a page"));
  CHECK_NOTHROW(check_holds_kind(folder / "empty", "<!doc", 0, "a page"));
  CHECK_NOTHROW(check_holds_kind(folder / "none", "<!doc", 0, "a page"));
  CHECK(refusal("table").find("is there and is not a page") != std::string::npos);
  CHECK_THROWS(check_holds_kind(folder / "page", "{", 100, "a file"));
}

/// The working folder; that of the tests may be another user's.
class InFolder {
 public:
  explicit InFolder(const std::string& path) { std::filesystem::current_path(path); }
  ~InFolder() { std::filesystem::current_path(before_); }

 private:
  std::filesystem::path before_ = std::filesystem::current_path();
};

TEST_CASE("writable folder: one that is there, and one that can be made") {
  const TemporaryFolder folder;
  CHECK(is_writable_folder(folder.path()));
  CHECK(is_writable_folder(folder / "a/b/c"));
  CHECK_NOTHROW(check_writable_folder(folder / "a/b/"));
  CHECK(std::filesystem::is_empty(folder.path()));  // Looking leaves nothing.
  const InFolder inside(folder.path());
  CHECK(is_writable_folder(""));
  CHECK(is_writable_folder("a-name-without-a-folder"));
}

TEST_CASE("writable folder: a file, or a link to nothing, in the way") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "file", "");
  CHECK_FALSE(is_writable_folder(folder / "file/below"));
  CHECK(refusal_of_folder(folder / "file/below") ==
        "cannot write into " + folder.path() + "/file/below: " + folder.path() + "/file: Not a directory");
  CHECK(refusal_of_folder(folder / "file") == "cannot write into " + folder.path() + "/file: Not a directory");
  std::filesystem::create_symlink("nowhere", folder / "link");
  CHECK_FALSE(is_writable_folder(folder / "link"));
  CHECK_FALSE(is_writable_folder(folder / "link/below"));
}

TEST_CASE("writable place: one that says yes and takes no file") {
  CHECK_FALSE(is_writable_folder("/proc"));  // Root's permissions allow it.
  CHECK(refusal_of_folder("/proc").rfind("cannot write into /proc: ", 0) == 0);
  CHECK(refusal_of_file("/proc/x").rfind("cannot write /proc/x: make a file in /proc: ", 0) == 0);
}

TEST_CASE("writable file: new or in the place of one, in a folder that is there") {
  const TemporaryFolder folder;
  CHECK_NOTHROW(check_writable_file(folder / "new"));
  CHECK(std::filesystem::is_empty(folder.path()));
  write_file_atomically(folder / "file", "content");
  CHECK_NOTHROW(check_writable_file(folder / "file"));
  CHECK(read_small_file(folder / "file", 100) == "content");
  {
    const InFolder inside(folder.path());
    CHECK_NOTHROW(check_writable_file("a-name-without-a-folder"));
  }
  CHECK(refusal_of_file(folder.path()) == "cannot write " + folder.path() + ": Is a directory");
  CHECK(refusal_of_file(folder / "none/x") ==
        "cannot write " + folder.path() + "/none/x: make a file in " + folder.path() + "/none: No such file or directory");
  CHECK(refusal_of_file(folder / "file/x") ==
        "cannot write " + folder.path() + "/file/x: make a file in " + folder.path() + "/file: Not a directory");
}

TEST_CASE("writable file: what is no regular file keeps its place") {
  const TemporaryFolder folder;
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(refusal_of_file(folder / "pipe").find("pipe: it is a pipe, and a file would take its place") != std::string::npos);
  CHECK_THROWS_AS(write_file_atomically(folder / "pipe", "content"), Error);
  CHECK(std::filesystem::is_fifo(folder / "pipe"));
  std::filesystem::create_symlink("/dev/null", folder / "link");
  CHECK(refusal_of_file(folder / "link").find("it is a device") != std::string::npos);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 2);
}

TEST_CASE("distinct files: by whatever path") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "input", "content");
  std::filesystem::create_symlink("input", folder / "link");
  std::filesystem::create_hard_link(folder / "input", folder / "hard");
  const auto refusal = [&](const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs) -> std::string {
    try {
      check_distinct_files(outputs, inputs);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  const NamedFile input = {"--cluster", folder / "input"};
  CHECK(refusal({{"--out", folder / "x"}, {"--report", folder / "y"}}, {input}).empty());
  CHECK(refusal({{"--out", ""}, {"--report", ""}}, {{"--profile", ""}}).empty());
  CHECK(refusal({{"--out", folder / "x"}, {"--report", folder / "./x"}}, {}).ends_with("are the same file; give each its own"));
  for (const char* name : {"input", "link", "hard"})
    CHECK(refusal({{"--out", folder / name}}, {input}).find(" would be written over --cluster ") != std::string::npos);
}

TEST_CASE("writable folder: without permission") {
  if (!permissions_bind()) return;
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "closed");
  using enum std::filesystem::perms;
  std::filesystem::permissions(folder.path(), owner_all | others_read | others_exec);
  std::filesystem::permissions(folder / "closed", owner_read | owner_exec | others_read | others_exec);
  CHECK(as_nobody([&] { return refusal_of_folder(folder / "closed/below"); }).ends_with("Permission denied"));
}

}  // namespace
}  // namespace cohort
