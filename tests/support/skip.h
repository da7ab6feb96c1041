#pragma once
// For tests: saying that this machine cannot run one, and being somebody whom permissions bind. Defined in tests/doctest_main.cpp.

#include <functional>
#include <string>

namespace cohort {

/// Notes why the test case that calls it ends here; the rest of the file still runs. ctest then reports the file as skipped (exit code 77),
/// scripts/test prints the reason, and with CI=true in the environment it is a failure: a machine of continuous integration has all but
/// what `also_in_ci` marks (abilities of the processor, and CUDA: what no script can install).
void skip_test(const std::string& reason, bool also_in_ci = false);

/// Whether as_nobody() is somebody whom permissions bind. Elsewhere (root of a container that has no other user) it notes the skip.
bool permissions_bind();

/// What `body` returns, or the text of its exception, in a forked process that is not root: root may read and write everything.
std::string as_nobody(const std::function<std::string()>& body);

}  // namespace cohort
