#include "cohort/data/images/picture_list.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/data/source/byte_buffer.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with("."); }

/// Folders within a class's are read too; links to folders are not followed, so that none is read for ever.
void add_files(const std::string& folder, int64_t label, std::vector<PictureFile>& files) {
  const auto before = std::ssize(files);
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (is_hidden(entry->path())) {
      if (entry->is_directory()) entry.disable_recursion_pending();
      continue;
    }
    std::error_code ignored;
    if (entry->is_directory(ignored)) {
      if (entry->is_symlink(ignored))
        fail(ErrorCode::kBadInput, entry->path().string(), " is a link to a folder: expected pictures; copy them, or link each one");
      continue;
    }
    if (std::ssize(files) == kMaxSamples) fail(ErrorCode::kBadInput, folder, ": more pictures than a data set may have, ", kMaxSamples);
    files.push_back({entry->path().string(), label});
  }
  if (error) fail(ErrorCode::kBadInput, "cannot read folder ", folder, ": ", error.message());
  if (std::ssize(files) == before) fail(ErrorCode::kBadInput, folder, " has no pictures: expected at least one in each class folder");
  std::sort(files.begin() + before, files.end(), [](const PictureFile& a, const PictureFile& b) { return a.path < b.path; });
}

}  // namespace

std::vector<std::string> names_in_folder(const std::string& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) fail(ErrorCode::kBadInput, "no folder ", folder);
  if (!fs::is_directory(folder, error)) fail(ErrorCode::kBadInput, folder, " is not a folder: expected one with a folder for each class");
  std::vector<std::string> names;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    if (!is_hidden(entry->path())) names.push_back(entry->path().filename().string());
  if (error) fail(ErrorCode::kBadInput, "cannot read folder ", folder, ": ", error.message());
  std::sort(names.begin(), names.end());
  return names;
}

PictureList list_pictures(const std::string& folder) {
  PictureList list;
  for (const std::string& name : names_in_folder(folder)) {
    const std::string path = (fs::path(folder) / name).string();
    std::error_code ignored;
    if (!fs::is_directory(path, ignored))
      fail(ErrorCode::kBadInput, path, " stands beside the class folders: expected one folder for each class, with its pictures");
    add_files(path, std::ssize(list.class_names), list.files);
    list.class_names.push_back(printable(name));
  }
  if (list.class_names.empty()) fail(ErrorCode::kBadInput, folder, " has no class folders: expected one for each class, with its pictures");
  return list;
}

}  // namespace cohort
