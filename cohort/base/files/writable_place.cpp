#include "cohort/base/files/writable_place.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"

namespace cohort {
namespace {

bool exists(const std::string& place) {
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::symlink_status(place, ignored));
}

/// The folder itself, or its nearest existing ancestor.
std::string nearest_existing(const std::string& folder) {
  std::string place = folder.empty() ? "." : folder;
  while (!exists(place) && place != "." && place != "/") place = parent_folder(place);
  return place;
}

/// 0, or the errno of creating a file in `place`.
int reason_against(const std::string& place) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(place, ignored)) return exists(place) ? ENOTDIR : ENOENT;
  std::string probe = place + "/" + kProbePrefix + "XXXXXX";
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
  check_replaceable_file(path);
  const std::string folder = parent_folder(path);
  const int reason = reason_against(folder);
  if (reason != 0) fail_errno(ErrorCode::kBadInput, "write " + path + ": make a file in", folder, reason);
}

void check_holds_kind(const std::string& path, const std::string& beginning, int64_t offset, const std::string& what) {
  std::ifstream file(path, std::ios::binary);
  if (!file || file.peek() == std::ifstream::traits_type::eof()) return;
  std::string found(beginning.size(), 0);
  file.seekg(offset);
  file.read(found.data(), std::ssize(found));
  if (!file || found != beginning)
    fail(ErrorCode::kBadInput, path, " is there and is not ", what, ", so it is not written over; give another name, or remove it");
}

void check_distinct_files(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs) {
  const auto are_one = [](const NamedFile& a, const NamedFile& b) {
    std::error_code ignored;
    if (a.path.empty() || b.path.empty()) return false;
    return std::filesystem::weakly_canonical(a.path, ignored) == std::filesystem::weakly_canonical(b.path, ignored) ||
           std::filesystem::equivalent(a.path, b.path, ignored);
  };
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (size_t j = 0; j < i; ++j)
      if (are_one(outputs[i], outputs[j]))
        fail(ErrorCode::kBadInput, outputs[j].option, " ", outputs[j].path, " and ", outputs[i].option, " ", outputs[i].path,
             " are the same file; give each its own");
    for (const NamedFile& input : inputs)
      if (are_one(outputs[i], input))
        fail(ErrorCode::kBadInput, outputs[i].option, " ", outputs[i].path, " would be written over ", input.option, " ", input.path);
  }
}

}  // namespace cohort
