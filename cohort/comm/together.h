#pragma once
// What each rank does for itself and may fail at: all go on, or none.

#include <exception>
#include <string>

#include "cohort/base/fail.h"
#include "cohort/comm/group.h"

namespace cohort {

/// Runs `part` on this rank; all ranks throw the first failure of any. Collective. `what` stands before the text of exceptions that are no
/// Error.
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

}  // namespace cohort
