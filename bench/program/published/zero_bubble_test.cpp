// Schedules within a limit of memory beside trying every order; settings in a table, whole and damaged.
#include "bench/program/published/zero_bubble.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "bench/program/published/published_instances.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/random.h"
#include "cohort/schedule/simulate.h"
#include "tests/support/mutation.h"

namespace cohort {
namespace {

ZeroBubbleSetting random_setting(uint64_t seed, int stages, int micro_batches) {
  const auto draw = [&](uint64_t what) { return 1 + static_cast<double>(random_bits(seed, what) % 20); };
  return {.num_stages = stages,
          .num_micro_batches = micro_batches,
          .forward = draw(0),
          .backward_input = draw(1),
          .backward_weight = draw(2),
          .transfer = draw(3) / 10 - 0.1,
          .kept_share = static_cast<double>(random_bits(seed, 4) % 11) / 10};
}

double work_of(const ZeroBubbleSetting& setting) {
  return setting.num_micro_batches * (setting.forward + setting.backward_input + setting.backward_weight);
}

/// All orders of the parts of a stage within the limit; a micro-batch's parts come in turn.
void add_orders(const ZeroBubbleSetting& setting, double limit, int stage, std::vector<int>& done, double held, std::vector<Action>& order,
                std::vector<std::vector<Action>>& all) {
  if (held > limit + 1e-9) return;
  if (order.size() == 3 * done.size()) all.push_back(order);
  for (int k = 0; k < static_cast<int>(done.size()); ++k) {
    if (done[k] == 3) continue;
    static constexpr ActionKind kKinds[] = {ActionKind::kForward, ActionKind::kBackwardInput, ActionKind::kBackwardWeight};
    const double change[] = {1, setting.kept_share - 1, -setting.kept_share};
    const int part = done[k]++;
    order.push_back({kKinds[part], stage, k});
    add_orders(setting, limit, stage, done, held + change[part], order, all);
    order.pop_back();
    --done[k];
  }
}

/// Of two stages, by trying every order of both.
double shortest_of_all(const ZeroBubbleSetting& setting, double limit) {
  std::vector<std::vector<Action>> orders[2];
  for (int stage : {0, 1}) {
    std::vector<int> done(setting.num_micro_batches);
    std::vector<Action> order;
    add_orders(setting, limit, stage, done, 0, order, orders[stage]);
  }
  double shortest = std::numeric_limits<double>::infinity();
  for (const auto& first : orders[0])
    for (const auto& second : orders[1]) {
      Schedule schedule = {
          .name = "all", .num_stages = 2, .num_micro_batches = setting.num_micro_batches, .edges = {{0, 1}}, .actions = {first, second}};
      try {
        shortest = std::min(shortest, timed_zero_bubble(setting, std::move(schedule)).longest_stage);
      } catch (const Error&) {  // Waits for itself.
      }
    }
  return shortest;
}

TEST_CASE("zero bubble: between the bound and what trying everything finds") {
  int proven = 0, best = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    const ZeroBubbleSetting setting = random_setting(seed, 2, 2);
    for (const double limit : {1.0, 1.5, 2.0}) {
      const double found = search_zero_bubble(setting, limit).longest_stage, shortest = shortest_of_all(setting, limit);
      CHECK(zero_bubble_bound(setting, limit) <= shortest + 1e-9);
      CHECK(found >= shortest - 1e-9);
      best += found <= shortest + 1e-9;
      proven += found <= zero_bubble_bound(setting, limit) + 1e-9;
    }
  }
  CHECK(best >= 16);
  CHECK(proven >= 9);
}

TEST_CASE("zero bubble: a replay agrees, and memory is within the limit") {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const int p = 1 + static_cast<int>(random_bits(seed, 10) % 6), m = 1 + static_cast<int>(random_bits(seed, 11) % 20);
    const ZeroBubbleSetting setting = random_setting(seed, p, m);
    for (const double limit : {1.0, 2.3, 1.0 * p, 2.0 * p}) {
      const ZeroBubblePlan found = search_zero_bubble(setting, limit), replayed = timed_zero_bubble(setting, found.schedule);
      CHECK(found.longest_stage == doctest::Approx(replayed.longest_stage));
      CHECK(found.makespan == doctest::Approx(replayed.makespan));
      CHECK(found.peak == doctest::Approx(replayed.peak));
      CHECK(found.peak <= limit + 1e-6);
      CHECK(found.longest_stage >= zero_bubble_bound(setting, limit) * (1 - 1e-9));
      CHECK(found.longest_stage <= found.makespan * (1 + 1e-9));
    }
    // ZB-H1 keeps a whole micro-batch until its weight part is done, so it is within p.
    const StageCosts costs = zero_bubble_costs(setting, 1);
    const Schedule h1 = make_schedule("zb-h1", {.num_ranks = p, .num_micro_batches = m, .edges = {}, .costs = &costs});
    CHECK(zero_bubble_bound(setting, p) <= timed_zero_bubble(setting, h1).longest_stage * (1 + 1e-9));
    const Schedule by_hand = make_schedule("zb-h1", {.num_ranks = p, .num_micro_batches = m, .edges = {}});
    CHECK(search_zero_bubble(setting, p).longest_stage <= timed_zero_bubble(setting, by_hand).longest_stage * (1 + 1e-9));
    CHECK(search_zero_bubble(setting, p).longest_stage <= timed_zero_bubble(setting, h1).longest_stage * 1.05);
  }
}

TEST_CASE("zero bubble: the published bubbles of a 1.5B model on 8 stages") {
  const double kept_share = 32 * 2304 / (34 * 2304 + 5.0 * 24 * 1024);
  const auto bubble = [](const ZeroBubbleSetting& setting, double time) { return 1 - work_of(setting) / time; };
  const ZeroBubbleSetting few = {8, 24, 18522, 18086, 9337, 601, kept_share}, more = {8, 32, 18513, 18086, 9331, 626, kept_share};
  CHECK(bubble(few, search_zero_bubble(few, 8).longest_stage) == doctest::Approx(0.158520).epsilon(1e-5));
  CHECK(bubble(few, zero_bubble_bound(few, 8)) == doctest::Approx(0.158520).epsilon(1e-5));
  CHECK(bubble(few, search_zero_bubble(few, 16).longest_stage) == doctest::Approx(0.043310).epsilon(1e-5));
  CHECK(bubble(more, search_zero_bubble(more, 16).longest_stage) < 0.003914);
  const Schedule one_f_one_b = make_schedule("1f1b", {.num_ranks = 8, .num_micro_batches = 24, .edges = {}});
  CHECK(bubble(few, timed_zero_bubble(few, one_f_one_b).makespan) == doctest::Approx(0.243054).epsilon(1e-5));
  CHECK_THROWS_AS(search_zero_bubble(few, 0.5), Error);
}

const std::string kHeader =
    "model,stages,microbatches,forward,backward_input,backward_weight,transfer,hidden,heads,layers,sequence_length\n";
const std::string kTable = kHeader + "small,2,6,10,9,5,1,512,8,4,128\nlarge,4,8,10,9,5,0,1024,16,9,512\n";

struct Files {
  TemporaryFolder folder;

  std::vector<InstanceAnswer> solve(const std::string& text, const InstanceOptions& options = {}) const {
    const std::string path = folder.path() + "/settings.csv";
    std::ofstream(path, std::ios::binary) << text;
    return solve_zero_bubble(path, options);
  }
  std::string refusal(const std::string& text, const InstanceOptions& options = {}) const {
    try {
      solve(text, options);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  }
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("zero-bubble settings: an answer a row, whose table is the order and can be executed") {
  const Files files;
  const std::vector<InstanceAnswer> answers = files.solve(kTable);
  REQUIRE(answers.size() == 2);
  for (const InstanceAnswer& answer : answers) {
    CHECK(answer.lower_bound <= answer.objective);
    CHECK(answer.optimal == (answer.objective - answer.lower_bound < 1e-9));
    const Schedule schedule = schedule_from_json(answer.plan["table"]);
    CHECK(schedule.num_ranks() == static_cast<int>(answer.plan["order"].size()));
    CHECK(answer.plan["order"][0][0] == "F0");
    CHECK(answer.plan["schedules"].size() == 6);
    for (const Json& other : answer.plan["schedules"]) CHECK(other["bubble_of_longest_stage"] <= other["bubble"].get<double>() + 1e-12);
  }
  CHECK(answers[0].plan["schedules"][1]["name"] == "interleaved:2");  // 4 layers on 2 stages.
  // 1F1B without transfers: p - 1 of m + p - 1 idle.
  CHECK(answers[1].plan["schedules"][0]["bubble"].get<double>() == doctest::Approx(3.0 / 11));
  InstanceOptions options;
  options.memory_bytes = 2;
  const std::vector<InstanceAnswer> tight = files.solve(kTable, options);
  CHECK(tight[1].objective > answers[1].objective);
  CHECK(tight[1].plan["peak"].get<double>() <= 2 + 1e-9);
}

TEST_CASE("zero-bubble settings: without shapes a weight part keeps all of its activations") {
  const Files files;
  const std::string table = "stages,microbatches,forward,backward_input,backward_weight,transfer\n4,8,10,10,10,0\n";
  InstanceOptions options;
  options.memory_bytes = 4;
  const InstanceAnswer answer = files.solve(table, options).front();
  // ZB-H1 with equal parts.
  CHECK(answer.plan["schedules"][2]["bubble"].get<double>() == doctest::Approx(3.0 / 27));
  CHECK(answer.objective <= 3.0 / 27 + 1e-9);
  CHECK(answer.plan["schedules"][1]["name"] == "interleaved:2");
}

TEST_CASE("zero-bubble settings: refusals name line and column") {
  const Files files;
  const auto with = [](const std::string& row) { return kHeader + row + "\n"; };
  CHECK(has(files.refusal(with("m,0,6,10,9,5,1,512,8,4,128")), ":2: stages is '0', expected a whole number from 1"));
  CHECK(has(files.refusal(with("m,2,6,-1,9,5,1,512,8,4,128")), ":2: forward is '-1', expected a positive number"));
  CHECK(has(files.refusal(with("m,2,6,10,nan,5,1,512,8,4,128")), "backward_input"));
  CHECK(has(files.refusal(with("m,2,6,10,9,5,-1,512,8,4,128")), "transfer is '-1', expected a number of at least 0"));
  CHECK(has(files.refusal(with("m,9999,6,10,9,5,1,512,8,4,128")), "stages is '9999'"));
  CHECK(has(files.refusal(with("m,2,6,10,9,5,1,512,8,4")), "10 fields, and the header has 11"));
  CHECK(has(files.refusal("stages,microbatches\n2,6\n"), "no column 'forward'"));
  CHECK(has(files.refusal(kHeader), "no rows"));
  InstanceOptions options;
  options.memory_bytes = 0.5;
  CHECK(has(files.refusal(kTable, options), "no schedule fits below 1"));
}

TEST_CASE("mutation: zero-bubble settings") {
  const Files files;
  int read = 0, refused = 0;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    const std::string what = files.refusal(mutated(kTable, seed));
    REQUIRE_MESSAGE(what.find('\n') == std::string::npos, what);
    ++(what == "none" ? read : refused);
  }
  CHECK(read > 10);
  CHECK(refused > 200);
}

}  // namespace
}  // namespace cohort
