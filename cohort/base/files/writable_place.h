#pragma once
// Checks that outputs can be written, before hours of work. Each creates and removes a probe file, because permission bits do not always
// predict success (as root, below /proc). A full disk is found when writing.

#include <cstdint>
#include <string>
#include <vector>

namespace cohort {

/// Name prefix of probe files; a killed process may leave one.
inline constexpr const char* kProbePrefix = ".cohort-";

/// Error(kBadInput) where files cannot be created in `folder`, or the folder itself cannot be created.
void check_writable_folder(const std::string& folder);
/// The same check as a predicate.
bool is_writable_folder(const std::string& folder);
/// Error(kBadInput) where the file `path` cannot be created or replaced: it is a folder, a device, a pipe or a socket, or its folder is
/// missing or not writable.
void check_writable_file(const std::string& path);
/// Error(kBadInput) where `path` exists and is another kind of file: not empty, and other bytes than `beginning` at `offset`. `what`: "a
/// page".
void check_holds_kind(const std::string& path, const std::string& beginning, int64_t offset, const std::string& what);
/// A file that a command reads or writes, and the option that names it ("--out").
struct NamedFile {
  std::string option, path;
};
/// Error(kBadInput) where an output is the same file as another output or an input; empty paths are ignored.
void check_distinct_files(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs);

}  // namespace cohort
