#pragma once
// The folder of a run, which one job at a time may write.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/base/files/file.h"
#include "cohort/base/files/folder_lock.h"
#include "cohort/job/config.h"

namespace cohort {

/// True if `folder` has metrics or checkpoints of a run.
bool holds_run(const std::string& folder);

/// Locks a run's folder (RUN/run.lock) before its content is read, until the job has ended. Held by one process of a job: the one that
/// starts its ranks, or rank 0 under another launcher.
class RunFolder {
 public:
  /// Takes config.run for a new run, with config.resume for an existing one, and with config.resume_auto for an existing one that has a
  /// checkpoint, else for a new one, which replaces files of a run that ended before its first checkpoint. If config.run is empty, makes
  /// runs/MODEL-YYYYMMDD-HHMMSS, with -2, -3 ... if that exists. Makes the folder durably. Error(kBadInput) if another process holds it, a
  /// new run would overwrite an old one, there is no run to resume, or the folder is not writable.
  explicit RunFolder(const Config& config);
  /// Unlocks it, and removes a folder that was made here and is still empty.
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::string& path() const { return path_; }
  /// True if an existing run is resumed.
  bool goes_on() const { return goes_on_; }
  /// Called last by a job that failed: writes a line to metrics.jsonl (and, with `to_stdout`, to stdout), and report.html. Does nothing if
  /// the job had not begun to train. Never throws.
  void record_failure(int exit_code, const std::string& cause, bool to_stdout) const noexcept;

 private:
  void make(const Config& config);
  void lock();
  void give_back() noexcept;

  std::string path_;
  std::vector<std::string> made_;  // Folders that were not there, the outermost first.
  bool goes_on_ = false;
  std::unique_ptr<FolderLock> lock_;
  std::string metrics_before_;  // Identity and size of metrics.jsonl when the folder was taken.
};

/// Detects that the folder of a run was moved or removed while it trains.
class WatchedFolder {
 public:
  explicit WatchedFolder(const std::string& path);
  /// None while the folder is at its path, or if that is unknown; else its new path, or "" for a removed folder.
  std::optional<std::string> moved_to() const;

 private:
  std::string path_;
  UniqueDescriptor folder_;
};

/// Writes config.toml of config.run, once layout and checkpoint are known to fit.
void write_run_config(const Config& config);

}  // namespace cohort
