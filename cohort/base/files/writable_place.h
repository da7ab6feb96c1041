#pragma once
// A place that a command is to write into, looked at before hours of work end there. Each looks by making a file beside what is to come
// and removing it: what a file system says of its permissions is not always what it then does (as root, below /proc). A full disk is found
// by who writes.

#include <cstdint>
#include <string>
#include <vector>

namespace cohort {

/// Of the file that is made for a moment, or left by a process that was killed in it.
inline constexpr const char* kProbePrefix = ".cohort-";

/// Error(kBadInput) in one line where files can not be made in `folder`, or the folder itself not be made: something that is no folder
/// stands in its way, no permission, a read-only file system.
void check_writable_folder(const std::string& folder);
/// The same as an answer.
bool is_writable_folder(const std::string& folder);
/// Error(kBadInput) in one line where no file `path` can be made, or put in the place of one: it is a folder, its folder is not there or
/// takes no files. Nor may it be a device, a pipe or a socket: a new file would take its place.
void check_writable_file(const std::string& path);
/// Error(kBadInput) where `path` is there and holds something else than what is to come: other bytes than `beginning` at `offset`. `what`:
/// "a page". An empty file may be replaced.
void check_holds_kind(const std::string& path, const std::string& beginning, int64_t offset, const std::string& what);
/// A file that a command reads or writes, and the option that names it ("--out").
struct NamedFile {
  std::string option, path;
};
/// Error(kBadInput) where two of the files are one, by whatever paths; those without a path do not count. `outputs` may not be `inputs`
/// either.
void check_distinct_files(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs);

}  // namespace cohort
