#pragma once
// One writer of a folder at a time: of a run, of a study.

#include <string>

#include "cohort/base/files/file.h"

namespace cohort {

/// Holds `path` locked (flock) until it is destroyed or its process ends, however it ends: the kernel knows who is dead, so one that a
/// killed process left is taken over. The file holds pid and host of the holder and since when, and is removed with the lock. Also held by
/// processes forked meanwhile, until they end; programs that are executed do not inherit it. Between hosts it holds where the file system
/// passes flock on, as NFS and Lustre mounted with flock do. Where the file system has no flock the file itself is the lock, which is said:
/// then one that a killed process of this host left is taken over, and another host's has to be removed by hand.
class FolderLock {
 public:
  /// Error(kBadInput) "WHAT is in use by process PID on HOST since TIME: ADVICE" where another holder keeps it for over a second, also one
  /// of this process.
  FolderLock(const std::string& path, const std::string& what, const std::string& advice);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  std::string path_;
  UniqueDescriptor file_;
};

}  // namespace cohort
