#include "cohort/study/writable_folder.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>

#include "cohort/base/error.h"
#include "cohort/base/file.h"

namespace cohort::study {
namespace {

std::string failure_of(const std::string& folder) {
  try {
    check_writable_folder(folder);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kBadInput);
    return error.what();
  }
  return "";
}

TEST_CASE("writable folder: one that is there, and one that can be made") {
  const TemporaryFolder folder;
  CHECK(is_writable_folder(folder.path()));
  CHECK(is_writable_folder(folder / "a/b/c"));
  CHECK(failure_of(folder / "a/b/").empty());
  CHECK_FALSE(std::filesystem::exists(folder / "a"));  // Looking makes nothing.
  CHECK(is_writable_folder(""));
  CHECK(is_writable_folder("a-name-without-a-folder"));
}

TEST_CASE("writable folder: a file, or a link to nothing, in the way") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "file", "");
  CHECK_FALSE(is_writable_folder(folder / "file/below"));
  CHECK(failure_of(folder / "file/below") ==
        "cannot write into " + folder.path() + "/file/below: " + folder.path() + "/file: Not a directory");
  std::filesystem::create_symlink("nowhere", folder / "link");
  CHECK_FALSE(is_writable_folder(folder / "link"));
  CHECK_FALSE(is_writable_folder(folder / "link/below"));
}

TEST_CASE("writable folder: without permission" * doctest::skip(::geteuid() == 0)) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "closed");
  std::filesystem::permissions(folder / "closed", std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  CHECK(failure_of(folder / "closed/below").ends_with("Permission denied"));
}

}  // namespace
}  // namespace cohort::study
