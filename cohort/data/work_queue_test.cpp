#include "cohort/data/work_queue.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/base/text/json.h"

namespace cohort {
namespace {

/// Workers that are slow, quick and die, by a seed. Counts how often each sample of each epoch was finished.
struct Crowd {
  Crowd(const WorkQueueOptions& how, uint64_t seed_of_all)
      : options(how), queue(how), seed(seed_of_all), sampler(how.num_samples, how.global_batch, 7) {}

  int64_t draw(int64_t below) { return static_cast<int64_t>(random_bits(seed, draws++) % static_cast<uint64_t>(below)); }
  /// One thing that happens. `staleness_bound` as take() has it.
  void act(int num_workers, int64_t staleness_bound) {
    const int worker = static_cast<int>(draw(num_workers));
    const auto own = std::find_if(held.begin(), held.end(), [&](const auto& each) { return each.first == worker; });
    if (own == held.end()) {
      if (const auto item = queue.take(worker, staleness_bound)) held.emplace_back(worker, *item);
      return;
    }
    const int64_t what = draw(5);
    if (what == 0) {
      CHECK(queue.lose(worker) == 1);
    } else if (what == 1) {
      queue.give_back(own->second);
    } else {
      for (const WorkItem& one : queue.steps_of(own->second.step, own->second.share))
        for (const int64_t sample : sampler.samples(one.step, one.positions))
          seen.push_back(one.step / sampler.steps_per_epoch() * options.num_samples + sample);
      queue.finish(own->second);
    }
    held.erase(own);
  }

  WorkQueueOptions options;
  WorkQueue queue;
  uint64_t seed;
  Sampler sampler;
  int64_t draws = 0;
  std::vector<std::pair<int, WorkItem>> held;
  std::vector<int64_t> seen;
};

TEST_CASE("work items: each sample once an epoch, whatever the speeds and deaths, also across a state that is saved and loaded") {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const int workers = 1 + static_cast<int>(seed % 7);
    WorkQueueOptions options{.num_samples = 37 + static_cast<int64_t>(seed % 5),
                             .global_batch = 8,
                             .num_shares = workers,
                             .granularity = 1 + static_cast<int64_t>(seed % 2)};
    const int64_t epoch = Sampler(options.num_samples, 8, 7).steps_per_epoch();
    options.end_step = 3 * epoch;
    Crowd crowd(options, seed);
    const int64_t staleness_bound = static_cast<int64_t>(seed % 4) - 1;
    for (int64_t act = 0; !crowd.queue.all_finished(); ++act) {
      REQUIRE(act < 100000);
      crowd.act(workers, staleness_bound);
      if (act % 11 != 0) continue;
      const Json state = crowd.queue.state();
      WorkQueue again(options);
      again.load(Json::parse(state.dump()), "test");
      CHECK(again.state() == state);
      crowd.queue = again;
    }
    std::sort(crowd.seen.begin(), crowd.seen.end());
    std::vector<int64_t> all(static_cast<size_t>(3 * options.num_samples));
    std::iota(all.begin(), all.end(), int64_t{0});
    CHECK(crowd.seen == all);
    CHECK(crowd.queue.samples_done() == 3 * options.num_samples);
    CHECK(crowd.queue.steps_done() == 3 * epoch);
  }
}

TEST_CASE("work items: nobody takes one more than that number of steps ahead of the first that is not finished") {
  WorkQueue queue({.num_samples = 100, .global_batch = 10, .num_shares = 2, .end_step = 10});
  const WorkItem slow = *queue.take(0, 1);
  for (int i = 0; i < 3; ++i) queue.finish(*queue.take(1, 1));  // The rest of step 0, and step 1.
  CHECK(!queue.take(1, 1));
  CHECK(queue.first_unfinished_step() == 0);
  CHECK(queue.lose(0) == 1);
  const WorkItem taken_over = *queue.take(1, 1);
  CHECK(taken_over.step == slow.step);
  CHECK(taken_over.share == slow.share);
  queue.finish(taken_over);
  CHECK(queue.take(1, 1)->step == 2);
  CHECK(queue.steps_done() == 2);
  // With 0 a step is finished by all before anybody has the next.
  WorkQueue lockstep({.num_samples = 100, .global_batch = 10, .num_shares = 2, .end_step = 10});
  const WorkItem first = *lockstep.take(0, 0), second = *lockstep.take(1, 0);
  lockstep.finish(first);
  CHECK(!lockstep.take(0, 0));
  lockstep.finish(second);
  CHECK(lockstep.take(0, 0)->step == 1);
}

TEST_CASE("work items: the last step of an epoch is cut into fewer where it has fewer samples, and weighs as a whole step") {
  WorkQueue queue({.num_samples = 10, .global_batch = 8, .num_shares = 4, .end_step = 2});
  double weight = 0;
  for (int i = 0; i < 4; ++i) weight += queue.take(0)->weight();
  CHECK(weight == 1);
  CHECK(queue.take(0)->weight() == 0.5);
  CHECK(queue.take(0)->weight() == 0.5);
  CHECK(!queue.take(0));
  CHECK(queue.lose(0) == 6);
  CHECK(queue.take(1)->step == 0);
}

TEST_CASE("work items of several steps: each sample once an epoch too, and each worker its own share while it is there") {
  for (const int64_t steps : {1, 3, 4})
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const int workers = 1 + static_cast<int>(seed % 4);
      WorkQueueOptions options{
          .num_samples = 37, .global_batch = 8, .num_shares = workers, .end_step = 15, .steps = steps, .own_shares = true};
      Crowd crowd(options, seed);
      for (int64_t act = 0; !crowd.queue.all_finished(); ++act) {
        REQUIRE(act < 100000);
        crowd.act(workers, -1);
        WorkQueue again(options);
        again.load(Json::parse(crowd.queue.state().dump()), "test");
        CHECK(again.state() == crowd.queue.state());
        crowd.queue = again;
      }
      std::sort(crowd.seen.begin(), crowd.seen.end());
      std::vector<int64_t> all(3 * 37);
      std::iota(all.begin(), all.end(), int64_t{0});
      CHECK(crowd.seen == all);
      CHECK(crowd.queue.steps_done() == 15);
    }
  WorkQueue queue({.num_samples = 100, .global_batch = 10, .num_shares = 2, .end_step = 10, .steps = 4, .own_shares = true});
  const WorkItem second = *queue.take(1), first = *queue.take(0);
  CHECK(second.share == 1);
  CHECK(first.share == 0);
  CHECK(first.step == 0);
  CHECK(first.num_samples() == 20);
  CHECK(first.weight() == 2);
  CHECK(queue.steps_of(0, 1).size() == 4);
  CHECK(queue.steps_of(0, 1)[2].positions.begin == 5);
  queue.finish(second);
  CHECK(queue.take(1)->step == 4);
  // Who has done its own takes what is left of the others.
  CHECK(queue.take(1)->share == 0);
  CHECK(queue.steps_of(8, 0).size() == 2);
  CHECK(queue.take(0)->step == 8);
  CHECK(queue.lose(0) == 2);
  CHECK(queue.take(2)->step == 0);
  REQUIRE(queue.num_open() > 1);
  const int64_t done = queue.samples_done();
  queue.give_all_back();
  CHECK(queue.num_open() == 0);
  CHECK(queue.samples_done() == done);
  CHECK(queue.take(7)->step == 0);
}

TEST_CASE("work items: a damaged state is refused in one line") {
  const WorkQueueOptions options{.num_samples = 100, .global_batch = 10, .num_shares = 2, .end_step = 10};
  WorkQueue queue(options);
  queue.take(0), queue.take(1), queue.take(2);
  queue.lose(1);
  const Json good = queue.state();
  const auto refused = [&](const std::string& key, const Json& value) {
    Json bad = good;
    if (value.is_discarded()) bad.erase(key);
    else bad[key] = value;
    CHECK_THROWS_AS(WorkQueue(options).load(bad, "here"), Error);
  };
  WorkQueue(options).load(good, "here");
  for (const char* key : {"next_step", "next_share", "num_shares", "samples_done", "open", "returned"}) {
    refused(key, Json(Json::value_t::discarded));
    for (const Json& value : {Json(-1), Json("x"), Json(1e300), Json::array({1}), Json::array({{1, 2, 3, 4}}), Json(nullptr)})
      refused(key, value);
  }
  refused("samples_done", 10);
  refused("num_shares", 3);
  refused("open", Json::array({{0, 0, 0}, {0, 0, 0}}));
  refused("open", Json::array({{7, 0, 0}}));
  CHECK_THROWS_AS(WorkQueue(options).load(Json(3), "here"), Error);
  CHECK_THROWS_AS(queue.finish(queue.item_at(4, 0)), Error);
}

}  // namespace
}  // namespace cohort
