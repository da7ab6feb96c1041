#include "cohort/train/run_saver.h"

#include <doctest/doctest.h>

#include <cmath>

#include "cohort/base/text/json.h"

namespace cohort {
namespace {

TEST_CASE("best step: the lowest loss that was saved, the earlier of two alike") {
  BestStep best;
  CHECK(best.best().step == -1);
  CHECK(best.add({10, 2.0, 0.5}));
  best.saved(11);  // Weights of another step were not evaluated.
  CHECK(best.best().step == -1);
  best.saved(10);
  CHECK(best.best().step == 10);
  CHECK(!best.add({20, 2.0, 0.1}));
  best.saved(20);
  CHECK(best.best().step == 10);
  CHECK(best.evaluations_since() == 1);
  CHECK(best.add({30, 1.5, 0.6}));  // Not saved.
  CHECK(best.evaluations_since() == 1);
  CHECK(best.add({40, 1.75, 0.6}));
  best.saved(40);
  CHECK(best.best().step == 40);
  CHECK(best.evaluations_since() == 0);
  best.saved(40);
  CHECK(best.best().val_loss == 1.75);
}

TEST_CASE("best step: goes on from its state") {
  BestStep one;
  one.add({10, 0.1 + 0.2, kUnknown});
  one.saved(10);
  one.add({20, 1, 0.25, 0.75});
  BestStep other;
  other.load(Json::parse(one.state().dump()));
  CHECK(other.best().step == 10);
  CHECK(other.best().val_loss == 0.1 + 0.2);
  CHECK(std::isnan(other.best().val_error));
  CHECK(other.last().step == 20);
  CHECK(other.last().val_error == 0.25);
  CHECK(other.last().val_precision == 0.75);
  CHECK(std::isnan(other.best().val_precision));
  CHECK(other.evaluations_since() == 1);
  BestStep none;
  none.load(Json::parse(BestStep().state().dump()));
  CHECK(none.best().step == -1);
  CHECK(none.add({1, 1e30, kUnknown}));
}

}  // namespace

}  // namespace cohort
