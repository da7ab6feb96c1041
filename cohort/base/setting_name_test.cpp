#include "cohort/base/setting_name.h"

#include <doctest/doctest.h>

#include <string>

#include "tests/support/member_names.h"

namespace cohort {
namespace {

const std::string kText = "use a smaller --global-batch (now 8), --lr=0.1 or '--layout dp=2'; or `cohort train --lr 1`, or --steps";

TEST_CASE("on the command line a text stays as it is") {
  CHECK(name_settings(kText) == kText);
  CHECK(name_settings("") == "");
}

TEST_CASE("a program reads members") {
  const MemberNames members;
  CHECK(name_settings(kText) == "use a smaller global_batch (now 8), lr=0.1 or 'layout dp=2'; or `cohort train --lr 1`, or steps");
  CHECK(name_settings("--layout: ") == "layout: ");
  CHECK(name_settings("--" + std::string("lr-end-factor")) == "lr_end_factor");
  CHECK(name_settings("") == "");
}

TEST_CASE("what only looks like an option stays") {
  const MemberNames members;
  for (const std::string text : {"--", "a -- b", "pre--set", "---x", "--5", "-x", "ends with --", "--Wall", "a_--b"})
    CHECK(name_settings(text) == text);
}

TEST_CASE("an open command ends with the text") {
  const MemberNames members;
  CHECK(name_settings("give --lr, or run `cohort train --lr ") == "give lr, or run `cohort train --lr ");
}

TEST_CASE("names come back with the end of the scope") {
  {
    const MemberNames members;
  }
  CHECK(name_settings("--lr") == "--lr");
}

}  // namespace
}  // namespace cohort
