#include "cohort/base/text/text.h"

#include <doctest/doctest.h>

namespace cohort {

TEST_CASE("a word for the shell: plain ones stay, others are quoted") {
  CHECK(shell_quoted("runs/quick-1") == "runs/quick-1");
  CHECK(shell_quoted("") == "''");
  CHECK(shell_quoted("a b") == "'a b'");
  CHECK(shell_quoted("$(x)") == "'$(x)'");
  CHECK(shell_quoted("it's") == "'it'\\''s'");
}

}  // namespace cohort
