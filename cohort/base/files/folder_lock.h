#pragma once
// Mutual exclusion of processes that write into one folder (a run, a study).

#include <string>

#include "cohort/base/files/file.h"

namespace cohort {

/// Holds `path` locked (flock) until it is destroyed or its process ends; the kernel releases the lock of a killed process. The file holds
/// pid, host and start time of the holder and is removed with the lock. Processes forked meanwhile hold it too; executed programs do not.
/// Works between hosts where the file system supports flock (NFS, Lustre mounted with flock). Without flock the file's existence is the
/// lock, with a warning: a file left by a killed process of this host is taken over, that of another host has to be removed by hand.
class FolderLock {
 public:
  /// Error(kBadInput) "WHAT is in use by process PID on HOST since TIME: ADVICE" where another holder (also in this process) keeps it for
  /// over a second.
  FolderLock(const std::string& path, const std::string& what, const std::string& advice);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  std::string path_;
  UniqueDescriptor file_;
};

}  // namespace cohort
