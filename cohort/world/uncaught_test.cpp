#include "cohort/world/uncaught.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <string>
#include <thread>

#include "cohort/base/fail.h"
#include "tests/support/skip.h"

namespace cohort {
namespace {

TEST_CASE("where no thread can be started the limit is named, and it is the environment's") {
  // For root there is no such limit.
  const std::string said = as_nobody([]() -> std::string {
    const rlimit none{0, 0};
    if (::setrlimit(RLIMIT_NPROC, &none) != 0) return "cannot set the limit";
    try {
      std::thread([] {}).join();
    } catch (const std::exception& error) {
      const ExitStatus ending = exit_status_of(error);
      return concat(ending.code, " ", ending.text);
    }
    return "a thread was started";
  });
  CHECK(said.starts_with("4 no further thread or process can be started: this user may have 0 (ulimit -u)"));
  CHECK(exit_status_of(std::runtime_error("other")).code == 1);
}

}  // namespace
}  // namespace cohort
