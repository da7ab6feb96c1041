#include "cohort/train/run/run_folder.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/append_file.h"
#include "cohort/base/files/file.h"
#include "cohort/base/files/writable_place.h"
#include "cohort/base/log.h"
#include "cohort/base/text/text.h"
#include "cohort/base/text/utc_time.h"
#include "cohort/checkpoint/io.h"
#include "cohort/job/resumed_config.h"
#include "cohort/record/run_event.h"
#include "cohort/report/report.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

constexpr char kLockName[] = "/run.lock", kMetricsName[] = "/metrics.jsonl";

/// runs/MODEL-YYYYMMDD-HHMMSS.
std::string default_run_folder(const Config& config) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &parts);
  return concat("runs/", config.model.substr(0, config.model.find(':')), "-", stamp);
}

/// Differs when the file was written or replaced.
std::string identity_of_file(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) return "";
  return concat(status.st_dev, " ", status.st_ino, " ", status.st_size);
}

/// Makes `path`, which must not be there; false where it is.
bool make_new_folder(const std::string& path) {
  checked::make_folders(posix_io(), parent_folder(path));
  if (::mkdir(path.c_str(), 0777) != 0) {
    if (errno == EEXIST) return false;
    fail_errno(ErrorCode::kFailed, "make folder", path, errno);
  }
  sync_folder(parent_folder(path));
  return true;
}

/// Ranks are processes of their own: of one that failed its sentence and its exit code are known.
std::string kind_of_failure(const std::string& cause) {
  const auto says = [&](const char* words) { return cause.find(words) != std::string::npos; };
  if (says("loss is not finite (")) return "diverged";
  return says("was killed by signal ") ? "killed" : "failed";
}

void check_holds_run(const Config& config, const std::string& path) {
  if (config.resume && !holds_run(path)) fail(ErrorCode::kBadInput, name_settings("--resume: "), path, " holds no run");
  if (std::error_code ignored; !config.resume && holds_run(path) && !fs::exists(path + "/checkpoints/latest", ignored))
    fail(ErrorCode::kBadInput, name_settings("--run "), path,
         " holds a run that saved no checkpoint, so it can not go on; remove it, or give another folder");
  if (!config.resume && holds_run(path))
    fail(ErrorCode::kBadInput, name_settings("--run "), path,
         name_settings(" already holds a run; add --resume to go on with it, or give another folder"));
}

/// A run is not put among files of somebody else, some of which would be written over.
void check_holds_nothing_else(const std::string& path) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, ignored))
    if (const std::string name = entry.path().filename().string(); name != kLockName + 1) names.push_back(name);
  if (names.empty()) return;
  const size_t count = names.size();
  std::sort(names.begin(), names.end());
  names.resize(std::min<size_t>(count, 3));
  fail(ErrorCode::kBadInput, name_settings("--run "), path, " holds no run but other files (", printable(join(names, ", ")),
       count > names.size() ? ", ..." : "", "), and a run has a folder of its own; give a new name");
}

}  // namespace

bool holds_run(const std::string& folder) {
  std::error_code ignored;
  return fs::exists(folder + kMetricsName, ignored) || fs::exists(folder + "/checkpoints", ignored);
}

void RunFolder::make(const Config& config) {
  if (config.run.empty()) {
    check_writable_folder("runs");
    const std::string name = path_ = default_run_folder(config);
    for (int number = 2; !make_new_folder(path_); ++number) path_ = concat(name, "-", number);
    is_made_here_ = true;
    return;
  }
  path_ = config.run;
  if (config.resume) check_holds_run(config, path_);  // Looked at again under the lock; here so that none is made.
  check_writable_folder(path_);
  is_made_here_ = make_new_folder(path_);
}

void RunFolder::lock() {
  lock_ = std::make_unique<FolderLock>(path_ + kLockName, name_settings("--run ") + path_,
                                       "one job at a time writes a run; wait for it, end it, or give another folder");
}

RunFolder::RunFolder(const Config& config) {
  try {
    for (int tries = 1; !lock_; ++tries) {
      make(config);
      try {
        lock();
      } catch (const Error&) {
        // Whoever had made the folder was refused and took it away again.
        if (tries == 3 || fs::exists(path_)) throw;
      }
    }
    check_holds_run(config, path_);
    if (!config.resume && !is_made_here_) check_holds_nothing_else(path_);
  } catch (...) {
    lock_.reset();
    if (is_made_here_) ::rmdir(path_.c_str());
    throw;
  }
  metrics_before_ = identity_of_file(path_ + kMetricsName);
}

RunFolder::~RunFolder() {
  lock_.reset();
  if (is_made_here_) ::rmdir(path_.c_str());  // Fails where anything is in it, as it should.
}

void RunFolder::record_failure(int exit_code, const std::string& cause, bool to_stdout) const noexcept {
  const auto whatever_happens = [](const auto& part) {
    try {
      part();
    } catch (const std::exception& error) {
      log_warning(concat("what the run leaves of its failure is not complete: ", error.what()));
    }
  };
  const std::string metrics = path_ + kMetricsName;
  if (identity_of_file(metrics) == metrics_before_) return;
  whatever_happens([&] {
    cut_torn_line(metrics);  // Of a rank that was killed while it wrote.
    const std::string line =
        to_line(FailureRecord{.exit_code = exit_code, .cause = cause, .ended = utc_now(), .run = path_, .reason = kind_of_failure(cause)});
    if (to_stdout) {
      std::fputs(line.c_str(), stdout);
      std::fflush(stdout);
    }
    if (const int reason = AppendFile(metrics).append(line); reason != 0)
      fail_errno(ErrorCode::kFailed, "write the cause to", metrics, reason);
  });
  whatever_happens([&] { log_info("report: " + report::write_report(path_)); });
}

void write_run_config(const Config& config) { write_file_atomically(config.run + "/config.toml", whole_toml(lasting_config(config))); }

}  // namespace cohort
