#pragma once
// For tests: where files of the repository are, and where files are cheap.

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "cohort/base/files/file.h"

namespace cohort {

/// From this source or the working folder upwards.
inline std::string repository_file(const std::string& name) {
  for (std::filesystem::path folder : {std::filesystem::absolute(__FILE__), std::filesystem::current_path() / "here"})
    while (folder.has_relative_path()) {
      folder = folder.parent_path();
      if (std::filesystem::exists(folder / name)) return folder / name;
    }
  FAIL(name << " was not found");
  return "";
}

/// In memory where it can be: thousands of small files are made, and a disk would take a millisecond for each. A kill loses no page of any
/// file system, so what is tested is the same.
struct MemoryFolder : TemporaryFolder {
  MemoryFolder() : TemporaryFolder("cohort", ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "") {}
};

}  // namespace cohort
