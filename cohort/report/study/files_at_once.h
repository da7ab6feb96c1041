#pragma once
// Files that belong together: a full disk leaves all of them as they were.

#include <string>
#include <utility>
#include <vector>

namespace cohort::report {

/// Each is written whole under another name beside its own; show() renames them all. What was not shown is removed on destruction, with the
/// folders that were made for it. One thread.
class FilesAtOnce {
 public:
  FilesAtOnce() = default;
  ~FilesAtOnce();
  FilesAtOnce(const FilesAtOnce&) = delete;
  FilesAtOnce& operator=(const FilesAtOnce&) = delete;

  /// And those above it. Error(kBadInput) where something stands in the way, kFailed for a full disk.
  void make_folder(const std::string& folder);
  /// As write_file_atomically() would, but for the name.
  void write(const std::string& path, const std::string& content);
  void show();

 private:
  std::vector<std::string> folders_;                        // Made here, the deepest first.
  std::vector<std::pair<std::string, std::string>> files_;  // Where each is now, and its path.
};

}  // namespace cohort::report
