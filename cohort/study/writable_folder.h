#pragma once
// A place that a command is to write into, looked at before hours of work end there.

#include <string>

namespace cohort::study {

/// Error(kBadInput) in one line where files can not be made in `folder`, or the folder itself not be made: something that is no folder
/// stands in its way, no permission, a read-only file system. A full disk is found by who writes.
void check_writable_folder(const std::string& folder);
/// The same as an answer.
bool is_writable_folder(const std::string& folder);

}  // namespace cohort::study
