#pragma once
// What killed processes leave: files NAME.tmp.NONCE (temporary_name()) and temporary folders. A living writer's are never touched.

#include <string>

namespace cohort {

/// Of `folder`, files whose name is one of temporary_name(), of `name` alone where that is given. Those go whose writer is certainly dead
/// or, where that cannot be known (another host's), that have not changed for a day. What cannot be removed stays, without a word.
void remove_leftover_files(const std::string& folder, const std::string& name = "") noexcept;

/// In `place`, folders NAME-NONCE-XXXXXX of this user, as TemporaryFolder makes them, whose maker is certainly dead.
void remove_leftover_folders(const std::string& place, const std::string& name) noexcept;

}  // namespace cohort
