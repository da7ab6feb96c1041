#pragma once
// A file that grows by whole pieces: lines of metrics, records of events. What a full disk takes only half of is cut off again.

#include <string>
#include <string_view>

#include "cohort/base/files/file.h"

namespace cohort {

/// One writer, one thread. Nothing waits in a buffer of the process, so a kill of the process loses no piece that was appended.
class AppendFile {
 public:
  /// Opens `path`, or makes it. Error(kFailed).
  explicit AppendFile(std::string path);
  /// Appends all of `piece`, as a rule by one write(2). Returns 0, or the errno of what went wrong: then none of it is in the file. Only a
  /// kill in the middle of a write that the disk cut short leaves a part.
  int append(std::string_view piece) noexcept;
  /// Waits until what was appended is on the disk; network file systems report a full disk as late as here. 0 or the errno.
  int sync() noexcept;

  const std::string& path() const { return path_; }
  int64_t bytes() const;  ///< Of the file now.

 private:
  int cut() noexcept;

  std::string path_;
  UniqueDescriptor descriptor_;
  int64_t torn_from_ = -1;  ///< Where a piece begins that could neither be finished nor cut off yet.
};

/// Cuts what stands after the last line feed: the part of a line that a kill may leave. A file that is missing is left so. Error(kFailed).
void cut_torn_line(const std::string& path);

}  // namespace cohort
