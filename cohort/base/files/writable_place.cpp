#include "cohort/base/files/writable_place.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"

namespace cohort {
namespace {

bool exists(const std::string& place) {
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::symlink_status(place, ignored));
}

/// The folder itself, or the nearest above it that is there.
std::string nearest_existing(const std::string& folder) {
  std::string place = folder.empty() ? "." : folder;
  while (!exists(place) && place != "." && place != "/") place = parent_folder(place);
  return place;
}

/// 0, or the errno that stands against files in `place`.
int reason_against(const std::string& place) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(place, ignored)) return exists(place) ? ENOTDIR : ENOENT;
  std::string probe = place + "/.cohort-XXXXXX";
  const UniqueDescriptor descriptor(::mkostemp(probe.data(), O_CLOEXEC));
  if (!descriptor) return errno;
  ::unlink(probe.c_str());
  return 0;
}

}  // namespace

void check_writable_folder(const std::string& folder) {
  const std::string place = nearest_existing(folder);
  const int reason = reason_against(place);
  if (reason != 0) fail_errno(ErrorCode::kBadInput, place == folder ? "write into" : "write into " + folder + ":", place, reason);
}

bool is_writable_folder(const std::string& folder) { return reason_against(nearest_existing(folder)) == 0; }

void check_writable_file(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) fail_errno(ErrorCode::kBadInput, "write", path, EISDIR);
  const std::string folder = parent_folder(path);
  const int reason = reason_against(folder);
  if (reason != 0) fail_errno(ErrorCode::kBadInput, "write " + path + ": make a file in", folder, reason);
}

}  // namespace cohort
