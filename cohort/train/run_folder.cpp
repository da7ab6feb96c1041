#include "cohort/train/run_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <set>
#include <system_error>

#include "cohort/base/fail.h"
#include "cohort/base/files/process_identity.h"
#include "cohort/base/files/writable_place.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/checkpoint/io.h"
#include "cohort/checkpoint/names.h"
#include "cohort/checkpoint/retention.h"
#include "cohort/job/resumed_config.h"
#include "cohort/record/run_event.h"
#include "cohort/report/report.h"
#include "cohort/report/run_reader.h"

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

/// Changes when the file is written or replaced.
std::string identity_of_file(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) return "";
  return concat(status.st_dev, " ", status.st_ino, " ", status.st_size);
}

/// Makes `path` and its parents, and adds the new folders to `made`; false if `path` exists.
bool make_new_folder(const std::string& path, std::vector<std::string>& made) {
  std::vector<std::string> missing;
  std::error_code ignored;
  for (std::string above = parent_folder(path); above != parent_folder(above) && !fs::exists(above, ignored); above = parent_folder(above))
    missing.push_back(above);
  made.insert(made.end(), missing.rbegin(), missing.rend());
  checked::make_folders(posix_io(), parent_folder(path));
  if (::mkdir(path.c_str(), 0777) != 0) {
    if (errno == EEXIST) return false;
    fail_errno(ErrorCode::kFailed, "make folder", path, errno);
  }
  made.push_back(path);
  sync_folder(parent_folder(path));
  return true;
}

/// By the message, since a rank is another process, of which only message and exit code are known.
std::string kind_of_failure(const std::string& cause) {
  const auto says = [&](const char* words) { return cause.find(words) != std::string::npos; };
  if (says("loss is not finite (")) return "diverged";
  return says("was killed by signal ") ? "killed" : "failed";
}

/// Files and folders of a run beside the lock, also under their temporary names.
bool is_of_a_run(const std::string& name) {
  static const std::set<std::string> kNames = {"config.toml", "plan.json",  "data.json",   "metrics.jsonl", "metrics.csv",
                                               "events",      "trace.json", "report.html", "checkpoints"};
  return kNames.contains(name.substr(0, name.find(".tmp.")));
}

/// A run that was killed early may have no metrics yet. A config.toml may be the user's own file.
bool holds_part_of_run(const std::string& path) {
  if (holds_run(path)) return true;
  const std::string ours = whole_toml(Config());
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name == "config.toml" ? read_small_file(path + "/" + name, size_t{1} << 20).starts_with(ours.substr(0, ours.find('\n')))
                              : is_of_a_run(name))
      return true;
  }
  return false;
}

/// Error(kBadInput) if `config` does not say what to do with the existing content.
void check_holds_run(const Config& config, const std::string& path) {
  if (config.resume_auto) return;
  if (config.resume && !holds_run(path)) fail(ErrorCode::kBadInput, name_settings("--resume: "), path, " holds no run");
  if (!config.resume && holds_run(path) && !holds_checkpoint(path + "/checkpoints"))
    fail(ErrorCode::kBadInput, name_settings("--run "), path,
         name_settings(
             " holds a run that saved no checkpoint, so it can not go on; remove it, begin it anew with --resume=auto, or give another "
             "folder"));
  if (!config.resume && holds_run(path))
    fail(ErrorCode::kBadInput, name_settings("--run "), path,
         name_settings(" already holds a run; add --resume to go on with it, or give another folder"));
}

/// Error(kBadInput) for other files in the folder, some of which a run could overwrite.
void check_holds_nothing_else(const std::string& path) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool is_left = is_of_a_run(name) && name.find(".tmp.") != std::string::npos;  // Left by a killed process.
    const bool is_probe = name.starts_with(kProbePrefix);                               // From another process that is starting.
    if (name != kLockName + 1 && !is_left && !is_probe) names.push_back(name);
  }
  if (names.empty()) return;
  const size_t count = names.size();
  std::sort(names.begin(), names.end());
  names.resize(std::min<size_t>(count, 3));
  fail(ErrorCode::kBadInput, name_settings("--run "), path, " holds no run but other files (", printable(join(names, ", ")),
       count > names.size() ? ", ..." : "", "), and a run has a folder of its own; give a new name");
}

bool is_beside_checkpoints(const std::string& name) {
  const std::string first = name.substr(0, name.find(".tmp."));
  return parse_checkpoint_folder_name(name) || first == kLatestName || first == kBestName;
}

/// A new run never removes a checkpoint, whatever its name. One that a dead process had not completed does not count.
void check_holds_no_manifest(const std::string& path) {
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path)) {
    if (entry.path().filename() != kManifestName) continue;
    const fs::path folder = entry.path().parent_path();
    const auto name = parse_checkpoint_folder_name(folder.filename().string());
    if (name && name->kind == CheckpointName::Kind::kTemporary && state_of_nonce(name->nonce) == ProcessState::kGone) continue;
    fail(ErrorCode::kBadInput, name_settings("--run "), path, " holds a run that saved no checkpoint, but ", folder.string(),
         " is one; call it ", path, "/checkpoints/step-N, with nine digits, to go on from it, move it away, or give another folder");
  }
}

/// Removes the files of a run that ended before its first checkpoint, except the lock. Error(kBadInput) if there are other files, or if
/// saved checkpoints are missing.
void clear_run_without_checkpoint(const std::string& path) {
  const auto check_names = [&](const std::string& folder, const auto& is_of_a_run) {
    std::error_code is_missing;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, is_missing))
      if (const std::string name = entry.path().filename().string(); !is_of_a_run(name) && !name.starts_with(kProbePrefix))
        fail(ErrorCode::kBadInput, name_settings("--run "), path, " holds a run that saved no checkpoint, and ", quote_text(name),
             ", which is not the run's; give another folder");
  };
  check_names(path, [&](const std::string& name) {
    const bool is_folder = name == "events" || name == "checkpoints";
    std::error_code ignored;
    return name == kLockName + 1 || (is_of_a_run(name) && fs::is_directory(fs::symlink_status(path + "/" + name, ignored)) == is_folder);
  });
  check_names(path + "/checkpoints", is_beside_checkpoints);
  if (std::error_code ignored; fs::exists(path + kMetricsName, ignored))
    if (const report::RunRecord run = report::read_run(path); !run.checkpoints.empty())
      fail(ErrorCode::kBadInput, name_settings("--run "), path, " holds a run that saved a checkpoint of step ",
           run.checkpoints.back().step, ", and there is none in ", path, "/checkpoints: bring them back, remove ", path,
           ", or give another folder");
  check_holds_no_manifest(path);
  log_info(concat(path, " was ended before its first checkpoint: it begins anew"));
  for (const fs::directory_entry& entry : fs::directory_iterator(path))
    if (entry.path().filename() != kLockName + 1) fs::remove_all(entry.path());
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
    for (int number = 2; !make_new_folder(path_, made_); ++number) path_ = concat(name, "-", number);
    return;
  }
  path_ = config.run;
  if (config.resume) check_holds_run(config, path_);  // Before a folder is made; checked again under the lock.
  check_writable_folder(path_);
  make_new_folder(path_, made_);
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
        // The process that had made the folder failed and removed it again.
        if (tries == 3 || fs::exists(path_)) throw;
      }
    }
    check_holds_run(config, path_);
    goes_on_ = config.resume || (config.resume_auto && holds_checkpoint(path_ + "/checkpoints"));
    if (config.resume_auto && !goes_on_ && holds_part_of_run(path_)) clear_run_without_checkpoint(path_);
    if (!goes_on_) check_holds_nothing_else(path_);
  } catch (...) {
    give_back();
    throw;
  }
  remove_leftover_files(path_);
  remove_unfinished(posix_io(), path_ + "/checkpoints");
  metrics_before_ = identity_of_file(path_ + kMetricsName);
}

RunFolder::~RunFolder() { give_back(); }

void RunFolder::give_back() noexcept {
  lock_.reset();
  for (auto made = made_.rbegin(); made != made_.rend(); ++made) ::rmdir(made->c_str());  // Fails if it is not empty.
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
  const std::string identity = identity_of_file(metrics);
  if (identity.empty() || identity == metrics_before_) return;
  whatever_happens([&] {
    cut_torn_line(metrics);  // A rank may have been killed while writing.
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

WatchedFolder::WatchedFolder(const std::string& path) : path_(path), folder_(open_file(path, O_RDONLY | O_DIRECTORY)) {}

std::optional<std::string> WatchedFolder::moved_to() const {
  struct stat held{}, named{};
  const auto is_held = [&](const char* path) {
    return ::stat(path, &named) == 0 && named.st_dev == held.st_dev && named.st_ino == held.st_ino;
  };
  if (::fstat(folder_.get(), &held) != 0 || is_held(path_.c_str())) return std::nullopt;
  if (std::error_code reason; !fs::exists(path_, reason) && reason) return std::nullopt;  // A file server that does not answer.
  std::error_code unknown;
  const std::string now = fs::read_symlink(concat("/proc/self/fd/", folder_.get()), unknown).string();
  return !unknown && is_held(now.c_str()) ? now : "";
}

void write_run_config(const Config& config) { write_file_atomically(config.run + "/config.toml", whole_toml(persistent_config(config))); }

}  // namespace cohort
