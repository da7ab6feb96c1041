#pragma once
// The folder that a run is written to, and who may write it: one job at a time.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/base/files/file.h"
#include "cohort/base/files/folder_lock.h"
#include "cohort/job/config.h"

namespace cohort {

/// Whether `folder` holds a run: metrics or checkpoints.
bool holds_run(const std::string& folder);

/// A run's folder while a job works on it: locked (RUN/run.lock) from before anybody looks what is in it until the job has ended. One
/// process of a job has it: the launcher, or rank 0 of another one's launch.
class RunFolder {
 public:
  /// Takes config.run, for a new run or, with config.resume, one to go on with; where it is empty, a new runs/MODEL-YYYYMMDD-HHMMSS, with
  /// -2, -3 ... where that is taken; with config.resume_auto, an existing run if it has a checkpoint, else a new one, which replaces
  /// what a run left that ended before its first checkpoint. Makes the folder, durably. Error(kBadInput) where another process has it, a
  /// new run would meet an old one, there is no run to resume, or the folder is not writable.
  explicit RunFolder(const Config& config);
  /// Gives it back; a folder that was made here and is still empty goes.
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::string& path() const { return path_; }
  /// Whether what is there is gone on with; else the run is new.
  bool goes_on() const { return goes_on_; }
  /// The last thing that a job does which failed: a line in metrics.jsonl (and, with `to_stdout`, on stdout), and report.html. Nothing
  /// where the job had not begun to train: what was refused changes nothing. Never throws.
  void record_failure(int exit_code, const std::string& cause, bool to_stdout) const noexcept;

 private:
  void make(const Config& config);
  void lock();
  void give_back() noexcept;

  std::string path_;
  std::vector<std::string> made_;  // Folders that were not there, the outermost first.
  bool goes_on_ = false;
  std::unique_ptr<FolderLock> lock_;
  std::string metrics_before_;  // Which file metrics.jsonl was, and how long, when the folder was taken.
};

/// The folder of a run that trains, for who may meet it at another place later, or nowhere.
class WatchedFolder {
 public:
  explicit WatchedFolder(const std::string& path);
  /// Nothing while it is at its path, or where nobody can say; else where it is now, "" for a folder that was removed.
  std::optional<std::string> moved_to() const;

 private:
  std::string path_;
  UniqueDescriptor folder_;
};

/// config.toml of config.run: of a new run once its layout is known to fit, of one that goes on once its checkpoint is.
void write_run_config(const Config& config);

}  // namespace cohort
