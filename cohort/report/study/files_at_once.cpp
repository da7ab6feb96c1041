#include "cohort/report/study/files_at_once.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <set>
#include <system_error>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"

namespace cohort::report {

FilesAtOnce::~FilesAtOnce() {
  for (const auto& [temporary, path] : files_) ::unlink(temporary.c_str());
  for (const std::string& folder : folders_) ::rmdir(folder.c_str());  // Stays where somebody else put something.
}

void FilesAtOnce::make_folder(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> missing;
  for (std::string place = folder; !std::filesystem::exists(place, error) && !error; place = parent_folder(place)) missing.push_back(place);
  folders_.insert(folders_.begin(), missing.begin(), missing.end());
  std::filesystem::create_directories(folder, error);
  const ErrorCode code = error == std::errc::no_space_on_device ? ErrorCode::kFailed : ErrorCode::kBadInput;
  if (error) fail(code, "cannot make the folder ", folder, ": ", error.message());
}

void FilesAtOnce::write(const std::string& path, const std::string& content) {
  check_replaceable_file(path);
  const std::string& temporary = files_.emplace_back(temporary_name(path), path).first;
  struct stat replaced{};
  const bool has_mode = ::stat(path.c_str(), &replaced) == 0;
  UniqueDescriptor descriptor = open_file(temporary, O_WRONLY | O_CREAT | O_EXCL);
  if (has_mode) ::fchmod(descriptor.get(), replaced.st_mode & 0777);  // What was kept from others stays so.
  write_all(descriptor.get(), content.data(), content.size(), temporary);
  sync_descriptor(descriptor.get(), temporary);
  if (::close(descriptor.release()) < 0 && errno != EINTR) fail_errno(ErrorCode::kFailed, "close", temporary, errno);
}

void FilesAtOnce::show() {
  std::set<std::string> changed;
  folders_.clear();
  while (!files_.empty()) {
    const auto& [temporary, path] = files_.back();
    if (::rename(temporary.c_str(), path.c_str()) < 0) fail_errno(ErrorCode::kFailed, "rename " + temporary + " to", path, errno);
    changed.insert(parent_folder(path));
    files_.pop_back();
  }
  for (const std::string& folder : changed) sync_folder(folder);
}

}  // namespace cohort::report
