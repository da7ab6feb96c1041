#pragma once
// One writer of a folder at a time.

#include <string>

#include "cohort/base/file.h"

namespace cohort::study {

/// Holds `path` locked (flock) until it is destroyed or its process ends, however it ends. The file holds pid and host of the holder and is
/// removed with the lock; one that a killed process left is taken over. Also held by processes forked meanwhile, until they end.
class FolderLock {
 public:
  /// Error(kBadInput) "WHAT is in use by process PID on HOST ..." where another holder keeps it for over a second, also one of this
  /// process.
  FolderLock(const std::string& path, const std::string& what);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  std::string path_;
  UniqueDescriptor file_;
};

}  // namespace cohort::study
