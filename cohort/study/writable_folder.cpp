#include "cohort/study/writable_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "cohort/base/error.h"
#include "cohort/base/file.h"

namespace cohort::study {
namespace {

/// The folder itself, or the nearest above it that is there.
std::string nearest_existing(const std::string& folder) {
  std::string place = folder.empty() ? "." : folder;
  std::error_code ignored;
  while (!std::filesystem::exists(std::filesystem::symlink_status(place, ignored)) && place != "." && place != "/")
    place = parent_folder(place);
  return place;
}

/// 0, or the errno that stands against it.
int reason_against(const std::string& place) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(place, ignored)) return ENOTDIR;
  // As the one whom the kernel asks when a file is made, who need not be the one who started the program.
  return ::faccessat(AT_FDCWD, place.c_str(), W_OK | X_OK, AT_EACCESS) == 0 ? 0 : errno;
}

}  // namespace

void check_writable_folder(const std::string& folder) {
  const std::string place = nearest_existing(folder);
  const int reason = reason_against(place);
  if (reason == 0) return;
  fail_errno(ErrorCode::kBadInput, place == folder ? "write into" : "write into " + folder + ":", place, reason);
}

bool is_writable_folder(const std::string& folder) { return reason_against(nearest_existing(folder)) == 0; }

}  // namespace cohort::study
