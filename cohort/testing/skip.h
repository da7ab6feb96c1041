#pragma once
// For tests: saying that this machine cannot run one, and being somebody whom permissions bind. Defined in tests/doctest_main.cpp.

#include <functional>
#include <string>

namespace cohort {

/// Notes why the test case that calls it ends here; the rest of the file still runs. ctest then reports the file as skipped (exit code 77),
/// scripts/test prints the reason, and with CI=true in the environment it is a failure: a machine of continuous integration has all but
/// what `also_in_ci` marks.
void skip_test(const std::string& reason, bool also_in_ci = false);

/// What `body` returns, or the text of its exception, in a forked process that is not root: root may read and write everything.
std::string as_nobody(const std::function<std::string()>& body);

}  // namespace cohort
