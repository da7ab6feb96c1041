#pragma once
// Runs a local operation on every rank and fails on all ranks where it fails on any.

#include <cstdint>
#include <exception>
#include <functional>
#include <string>

#include "cohort/base/fail.h"
#include "cohort/comm/group.h"

namespace cohort {

/// Runs `part` on this rank; all ranks throw the first failure of any. Collective. `what` precedes the text of exceptions other than Error.
template <typename Part>
void together(Group& group, const std::string& what, Part part) {
  std::string failure;
  try {
    part();
  } catch (const Error& error) {
    failure = concat(static_cast<int>(error.code()), error.what());
  } catch (const std::exception& error) {
    failure = concat(1, what, ": ", error.what());
  }
  for (const std::string& text : group.all_gather_text(failure, what))
    if (!text.empty()) throw Error(static_cast<ErrorCode>(text[0] - '0'), text.substr(1));
}

/// For a `part` that may exceed the exchange time-out, such as writing to a slow disk: it runs in a thread while the ranks exchange once a
/// second whether they are done. `progress` is polled meanwhile; a rank whose value does not change for kLongestFileCallSeconds
/// (world/status.h) ends its process.
void together_patiently(Group& group, const std::string& what, const std::function<void()>& part, const std::function<int64_t()>& progress);

}  // namespace cohort
