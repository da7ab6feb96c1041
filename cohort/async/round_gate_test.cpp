#include "cohort/async/round_gate.h"

#include <doctest/doctest.h>

using namespace cohort;

TEST_CASE("an exchange takes place with a quorum and after the grace time, and at once where nobody else comes") {
  RoundGate gate(2, 0.5);
  CHECK(!gate.opens(10, false));  // Nobody has handed over.
  gate.add(10);
  CHECK(!gate.opens(1000, true));
  CHECK(gate.seconds_left(1000) > 1e300);
  CHECK(gate.opens(10, false));  // All others are lost.
  gate.add(11);
  CHECK(!gate.opens(11.25, true));
  CHECK(gate.seconds_left(11.25) == 0.25);
  gate.add(11.25);  // Who comes within the grace time does not lengthen it.
  CHECK(gate.seconds_left(11.25) == 0.25);
  CHECK(gate.opens(11.5, true));
  CHECK(gate.opens(11.25, false));
  gate.clear();
  CHECK(!gate.opens(12, false));
  gate.add(12);
  CHECK(!gate.opens(20, true));
  RoundGate at_once(1, 0);
  at_once.add(3);
  CHECK(at_once.opens(3, true));
}
