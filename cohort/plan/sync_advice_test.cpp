#include "cohort/plan/sync_advice.h"

#include <doctest/doctest.h>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

/// Paces by name, as a clock would give them; 0.75 steps late without waiting.
auto paces(std::vector<std::pair<std::string, double>> samples_per_second) {
  return [samples_per_second = std::move(samples_per_second)](const SyncMode& mode, const SyncConditions& conditions) {
    const bool is_even = conditions.clock.slow.empty();
    for (const auto& [sync, pace] : samples_per_second) {
      if (sync == "shares" ? !is_even || mode.kind != SyncKind::kStep : sync != to_text(mode)) continue;
      return SyncPace{pace, has_late_gradients(mode) ? 0.75 : 0};
    }
    FAIL(to_text(mode));
    return SyncPace();
  };
}

SyncConditions four_workers() {
  return {.clock = parse_virtual("workers=4,compute=0.02,link=100us:10Gbit"), .global_batch = 128, .pull_bytes = 1000, .push_bytes = 1000};
}

const SyncAdviceRecord::Row& row_of(const SyncAdviceRecord& advice, const std::string& sync) {
  for (const SyncAdviceRecord::Row& row : advice.rows)
    if (row.sync == sync && row.options.empty()) return row;
  FAIL(sync);
  return advice.rows.front();
}

TEST_CASE("even workers: step, and what the others would need") {
  const auto pace = paces({{"step", 5806}, {"async", 5846}, {"stale:2", 5846}, {"local:4", 6139}, {"local:16", 6200}});
  const SyncAdviceRecord advice = advise_sync(four_workers(), "step", pace);
  CHECK(advice.sync == "step");
  CHECK(advice.options.empty());
  CHECK(advice.clock == "workers=4,link=100us:10Gbit,compute=0.02");
  CHECK(row_of(advice, "step").time_high == 1);
  CHECK(row_of(advice, "async").samples_low == doctest::Approx(1.6));
  CHECK(row_of(advice, "async").samples_high == doctest::Approx(2.35));
  CHECK(row_of(advice, "local:4").time_low == doctest::Approx(1.12 * 5806 / 6139));
  CHECK(advice.sentence.find("sync=step is right here: ") == 0);
  // The same where another is in use.
  CHECK(advise_sync(four_workers(), "async", pace).sentence.find("sync=step would be sooner at a goal here: ") == 0);
}

TEST_CASE("one worker that is always slower: the same training with shares by speed comes first") {
  SyncConditions slow = four_workers();
  slow.clock.slow = {{3, 4}};
  const SyncAdviceRecord advice = advise_sync(
      slow, "step", paces({{"shares", 4900}, {"step", 1569}, {"async", 4830}, {"stale:2", 4668}, {"local:4", 1592}, {"local:16", 1600}}));
  CHECK(advice.sync == "step");
  CHECK(advice.options == name_settings("--shares auto"));
  CHECK(advice.sentence == "sync=step with " + name_settings("--shares auto") +
                               " would be sooner at a goal here: it makes 3.12 times the samples a second in the same training, so a goal "
                               "takes 0.32 times as long as with equal shares");
}

TEST_CASE("shares by speed: what a measured step took beside the slowest worker's computing stays") {
  SyncConditions slow = four_workers();
  slow.clock.slow = {{3, 4}};
  slow.step_seconds = 0.09;  // 80 ms of computing, 10 of the rest; 4 x 20 ms of work over 3.25 speeds.
  const SyncAdviceRecord advice = advise_sync(
      slow, "step", paces({{"shares", 1}, {"step", 1}, {"async", 4830}, {"stale:2", 4668}, {"local:4", 1592}, {"local:16", 1600}}));
  CHECK(advice.rows[0].samples_per_second == doctest::Approx(128 / 0.09));
  CHECK(advice.rows[1].options == name_settings("--shares auto"));
  CHECK(advice.rows[1].samples_per_second == doctest::Approx(128 / (0.01 + 0.08 / 3.25)));
}

TEST_CASE("a slow link: local steps; pauses: a trial decides") {
  const SyncAdviceRecord link =
      advise_sync(four_workers(), "step", paces({{"step", 1018}, {"async", 483}, {"stale:2", 483}, {"local:4", 2736}, {"local:16", 3200}}));
  CHECK(link.sync == "local:4");
  CHECK(link.sentence.find(
            "sync=local:4 would be sooner at a goal here: it makes 2.69 times the samples a second and needs 1.12 to 1.45 times "
            "as many, so a goal takes 0.42 to 0.54 times as long as with sync=step") == 0);
  const SyncAdviceRecord pauses = advise_sync(
      four_workers(), "step", paces({{"step", 2116}, {"async", 4048}, {"stale:2", 2447}, {"local:4", 2265}, {"local:16", 2900}}));
  CHECK(pauses.sync == "step");
  CHECK(pauses.sentence.find(
            "keep sync=step, unless a trial says otherwise: sync=async makes 1.91 times the samples a second and needs ") == 0);
  CHECK(pauses.sentence.find("workers=4,link=100us:10Gbit,compute=0.02") != std::string::npos);
}

TEST_CASE("the sync in use is among those that are looked at") {
  const auto pace = paces({{"step", 100}, {"async", 100}, {"stale:2", 100}, {"stale:5", 100}, {"local:4", 100}, {"local:16", 100}});
  CHECK(row_of(advise_sync(four_workers(), "stale:5", pace), "stale:5").samples_high == doctest::Approx(2.35));
  // Of these there is no pace, and they do not end the training that asks.
  for (const char* sync : {"stale:0", "queue", "queue:newest", "diloco:8"})
    CHECK_MESSAGE(advise_sync(four_workers(), sync, pace).rows.size() == 5, sync);
}

TEST_CASE("a clock from the times of ranks: who is slower, and steps that stand out") {
  const std::vector<double> even(20, 0.01), slow(20, 0.04);
  std::vector<double> paused = even;
  paused[3] = paused[9] = paused[15] = 0.51;
  const VirtualSpec clock = clock_of({compute_times(even), compute_times(paused), compute_times(slow)}, {4e-4, 1e6});
  CHECK(clock.workers == 3);
  CHECK(clock.compute_seconds == doctest::Approx(0.01));
  REQUIRE(clock.slow.size() == 1);
  CHECK(clock.slow[0].first == 2);
  CHECK(clock.slow[0].second == doctest::Approx(4));
  CHECK(clock.pause_seconds == doctest::Approx(0.5));
  CHECK(clock.pause_every_seconds == doctest::Approx((0.2 + 0.2 + 0.8) / 3));
  CHECK(clock.latency_seconds == doctest::Approx(1e-4));
  CHECK(clock.bytes_per_second == 1e6);
  // Two are chance, and no link has no end.
  paused[3] = 0.01;
  const VirtualSpec quiet = clock_of({compute_times(paused), compute_times(even)}, {});
  CHECK(quiet.pause_every_seconds == 0);
  CHECK(quiet.bytes_per_second == 0);
  CHECK(quiet.slow.empty());
}

}  // namespace
}  // namespace cohort
