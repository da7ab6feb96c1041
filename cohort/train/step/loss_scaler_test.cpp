#include "cohort/train/step/loss_scaler.h"

#include <doctest/doctest.h>

#include <limits>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"

namespace cohort {
namespace {

TEST_CASE("the scale doubles after 2000 clean steps in a row and halves after an overflow") {
  LossScaler scaler;
  CHECK(scaler.scale() == 65536);
  CHECK(scaler.gradient_factor() == 1.0 / 65536);
  for (int i = 0; i < 1999; ++i) scaler.update(false);
  CHECK(scaler.scale() == 65536);
  scaler.update(false);
  CHECK(scaler.scale() == 131072);
  for (int i = 0; i < 1999; ++i) scaler.update(false);
  scaler.update(true);  // the count begins anew
  CHECK(scaler.scale() == 65536);
  for (int i = 0; i < 1999; ++i) scaler.update(false);
  CHECK(scaler.scale() == 65536);
  scaler.update(false);
  CHECK(scaler.scale() == 131072);
  CHECK(scaler.skipped_steps() == 1);
}

TEST_CASE("a fixed scale stays, and no scale is 1") {
  LossScaler fixed({.initial = 128, .dynamic = false});
  for (int i = 0; i < 3000; ++i) fixed.update(i % 20 == 0);
  CHECK(fixed.scale() == 128);
  CHECK(fixed.skipped_steps() == 150);
  CHECK(LossScaler::none().gradient_factor() == 1);
}

TEST_CASE("overflows without end are the model's") {
  for (const bool dynamic : {true, false}) {
    LossScaler scaler({.dynamic = dynamic});
    for (int i = 0; i < 29; ++i) scaler.update(true);
    scaler.update(false);  // not in a row
    for (int i = 0; i < 29; ++i) scaler.update(true);
    std::string text;
    try {
      scaler.update(true);
    } catch (const Error& error) {
      text = error.what();
      CHECK(error.code() == ErrorCode::kFailed);
    }
    CHECK(text.find("infinite or NaN in 30 steps in a row") != std::string::npos);
    CHECK((text.find("the model itself makes them") != std::string::npos) == dynamic);
  }
}

TEST_CASE("the scale grows and shrinks within what a float can hold") {
  LossScaler scaler({.growth_interval = 1});
  for (int i = 0; i < 300; ++i) scaler.update(false);
  CHECK(scaler.scale() == 0x1p127);
}

TEST_CASE("a resumed run goes on where it was") {
  LossScaler one({.growth_interval = 5});
  for (const bool skipped : {true, false, false, true, true, false, false, false}) one.update(skipped);
  LossScaler two({.growth_interval = 5});
  two.load(Json::parse(one.state().dump()));
  CHECK(two.skipped_steps() == 3);
  for (int i = 0; i < 7; ++i) {
    one.update(i == 4), two.update(i == 4);
    CHECK(one.scale() == two.scale());
  }
  LossScaler fixed({.initial = 8, .dynamic = false});
  fixed.load(one.state());
  CHECK(fixed.scale() == 8);
}

TEST_CASE("damaged states and senseless options are refused") {
  LossScaler scaler;
  const Json good = scaler.state();
  for (const char* key : {"scale", "clean_steps", "skipped_in_a_row", "skipped_steps"}) {
    Json bad = good;
    bad[key] = -1;
    CHECK_THROWS_AS(scaler.load(bad), Error);
    bad[key] = "many";
    CHECK_THROWS_AS(scaler.load(bad), Error);
    bad.erase(key);
    CHECK_THROWS_AS(scaler.load(bad), Error);
  }
  CHECK_THROWS_AS(scaler.load(Json()), Error);
  CHECK(scaler.state() == good);
  CHECK_THROWS_AS(LossScaler({.initial = 0}), Error);
  CHECK_THROWS_AS(LossScaler({.initial = std::numeric_limits<double>::infinity()}), Error);
  CHECK_THROWS_AS(LossScaler({.growth = 1}), Error);
  CHECK_THROWS_AS(LossScaler({.backoff = 1}), Error);
  CHECK_THROWS_AS(LossScaler({.growth_interval = 0}), Error);
}

}  // namespace
}  // namespace cohort
