#include "cohort/schedule/virtual_clock.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"

namespace cohort {
namespace {

TEST_CASE("virtual clock: events come in the order of their times, those of one time as they were scheduled") {
  VirtualClock clock(parse_virtual("workers=3"), 1);
  clock.schedule(2, 7, 0), clock.schedule(1, 8, 1), clock.schedule(2, 9, 2);
  CHECK(clock.next()->kind == 8);
  CHECK(clock.now() == 1);
  clock.schedule(1, 10, 1);
  CHECK(clock.next()->kind == 7);
  clock.cancel(2);
  CHECK(clock.next()->kind == 10);
  CHECK(!clock.next());
}

TEST_CASE("virtual clock: a link carries one message after the other, each way by itself") {
  VirtualClock clock(parse_virtual("workers=2,link=1ms:1MB"), 1);
  CHECK(clock.send(VirtualClock::kToServer, 1'000'000).end == doctest::Approx(1.001));
  const auto second = clock.send(VirtualClock::kToServer, 500'000);
  CHECK(second.begin == doctest::Approx(1));
  CHECK(second.end == doctest::Approx(1.501));
  CHECK(clock.send(VirtualClock::kToWorkers, 500'000).end == doctest::Approx(0.501));
  clock.advance(10);
  CHECK(clock.send(VirtualClock::kToServer, 0).begin == 0);
  VirtualClock endless(parse_virtual("workers=2"), 1);
  CHECK(endless.send(VirtualClock::kToServer, 1'000'000).end == 0);
}

TEST_CASE("virtual clock: speeds, lifetimes and pauses have the requested distribution, and depend on the seed alone") {
  const VirtualSpec spec = parse_virtual("workers=4000,speed=lognormal:0.5,mtbf=100,pauses=10:2,slow=0:4");
  VirtualClock clock(spec, 3), same(spec, 3), other(spec, 4);
  double mean = 0, variance = 0, life = 0, taken = 0, alone = 0;
  for (int worker = 1; worker < 4000; ++worker) {
    CHECK(clock.speed(worker) == same.speed(worker));
    mean += std::log(clock.speed(worker)) / 3999;
    variance += std::pow(std::log(clock.speed(worker)), 2) / 3999;
    life += *clock.lifetime(worker) / 3999;
    for (int i = 0; i < 10; ++i) taken += clock.work(worker, 7), alone += 7 / clock.speed(worker);
  }
  CHECK(std::abs(mean) < 0.03);
  CHECK(variance == doctest::Approx(0.25).epsilon(0.1));
  CHECK(life == doctest::Approx(100).epsilon(0.06));
  CHECK(taken / alone == doctest::Approx(1.2).epsilon(0.02));
  CHECK(other.speed(1) != clock.speed(1));
  CHECK(VirtualClock(parse_virtual("workers=2,slow=1:4"), 3).speed(1) == 0.25);
  CHECK(!VirtualClock(parse_virtual("workers=2"), 3).lifetime(0));
}

TEST_CASE("virtual clock: goes on from its state as if nothing had been") {
  const VirtualSpec spec = parse_virtual("workers=5,speed=lognormal:0.5,mtbf=10,pauses=1:2,link=1ms:1MB");
  VirtualClock clock(spec, 3);
  const auto act = [](VirtualClock& at) {
    const int worker = at.next().value_or(VirtualEvent{}).worker;
    at.schedule(at.work(worker, 0.7) + *at.lifetime(worker), 1, worker);
    at.schedule(at.send(VirtualClock::kToServer, 1000).end, 2, (worker + 1) % 5);
    if (at.state()["events"].size() > 20) at.cancel(worker);
  };
  for (int i = 0; i < 50; ++i) act(clock);
  VirtualClock again(spec, 3);
  again.load(Json::parse(clock.state().dump()), "test");
  for (int i = 0; i < 50; ++i) act(clock), act(again);
  CHECK(again.state() == clock.state());
}

TEST_CASE("virtual clock: a damaged state is refused") {
  VirtualClock clock(parse_virtual("workers=2"), 3);
  clock.schedule(1, 1, 1);
  const Json good = clock.state();
  for (const char* key : {"now", "free", "serial", "workers", "events"}) {
    for (const Json& value :
         {Json(nullptr), Json(-1), Json("x"), Json::array({1}), Json::array({{1, 2, 3, 4, 5}}), Json::array({{1, 2, 3, 99}})}) {
      Json bad = good;
      bad[key] = value;
      CHECK_THROWS_AS(VirtualClock(parse_virtual("workers=2"), 3).load(bad, "here"), Error);
    }
  }
  CHECK_THROWS_AS(VirtualClock(parse_virtual("workers=3"), 3).load(good, "here"), Error);
}

}  // namespace
}  // namespace cohort
