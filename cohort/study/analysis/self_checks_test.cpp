#include "cohort/study/analysis/self_checks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "cohort/study/analysis/fits.h"
#include "cohort/study/analysis/widened_space.h"
#include "tests/support/made_up_study.h"

namespace cohort::study {
namespace {

using made_up::kGoal;
using made_up::make_batch;
using made_up::make_study;

std::vector<Flag> flags_of(const StudyData& study, const GoalSpec& goal = kGoal) {
  return self_checks(study, goal, steps_to_result(study, goal));
}

const Flag* find(const std::vector<Flag>& flags, const std::string& rule, int64_t batch_size) {
  for (const Flag& flag : flags)
    if (flag.rule == rule && flag.batch_size == batch_size) return &flag;
  return nullptr;
}

std::string all_text(const std::vector<Flag>& flags) {
  std::string text;
  for (const Flag& flag : flags) text += flag.rule + ": " + flag.text() + "\n";
  return text;
}

/// 1000 x factor / B steps at the best; the best in the middle of the space.
StudyData scaling(const std::vector<std::pair<int64_t, double>>& best_steps, int64_t num_trials = 30, double width = 2) {
  StudyData study = {.goals = {kGoal}};
  for (const auto& [batch_size, best] : best_steps)
    study.batches.push_back(
        make_batch(batch_size, num_trials, static_cast<int64_t>(8 * best),
                   [&](int64_t, double unit, int64_t) -> std::optional<double> { return best * std::exp(width * std::abs(unit - 0.5)); }));
  return study;
}

std::vector<StepsToResult> table(const std::vector<std::pair<int64_t, int64_t>>& points) {
  std::vector<StepsToResult> steps;
  for (const auto& [batch_size, count] : points) steps.push_back({.batch_size = batch_size, .steps = count});
  return steps;
}

TEST_CASE("self-checks: a sound study has no flag") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<Flag> flags = flags_of(make_study(400, 100, 1, 40, seed, 0.5));
    CAPTURE(all_text(flags));
    CHECK(std::none_of(flags.begin(), flags.end(), [](const Flag& flag) { return flag.refuses; }));
  }
  CHECK(flags_of(scaling({{8, 4000}, {16, 2000}, {32, 1000}, {64, 800}})).empty());
}

TEST_CASE("self-checks: under-tuned batch sizes of a table of trials") {
  // 32 was searched as if nothing there worked well: its best is 1.5 times too slow.
  StudyData study = scaling({{8, 4000}, {16, 2000}, {32, 1500}, {64, 500}, {128, 250}});
  std::vector<Flag> flags = flags_of(study);
  const Flag* flag = find(flags, "examples-fall", 32);
  CAPTURE(all_text(flags));
  REQUIRE(flag != nullptr);
  CHECK(flag->refuses);
  CHECK(flag->evidence.find("at batch size 32 to") != std::string::npos);
  CHECK(flag->evidence.find("1.5") != std::string::npos);
  CHECK(analyse(study, kGoal, {.num_resamples = 10}).regimes.refused);
  // The plateau's last batch size is under-tuned: steps rise.
  study = scaling({{8, 4000}, {16, 2000}, {32, 1000}, {64, 800}, {128, 1100}});
  flags = flags_of(study);
  flag = find(flags, "steps-rise", 128);
  REQUIRE(flag != nullptr);
  CHECK(flag->refuses);
  CHECK(flag->evidence.find("steps rise from 8") != std::string::npos);
  CHECK(flag->advice.find("at batch size 128") != std::string::npos);
  const Analysis analysis = analyse(study, kGoal, {.num_resamples = 10});
  CHECK(analysis.regimes.refused);
  CHECK_FALSE(analysis.regimes.flat_from.has_value());
  const std::string evidence = flag->evidence;
  CHECK(std::count_if(analysis.regimes.flags.begin(), analysis.regimes.flags.end(),
                      [&](const std::string& text) { return text.starts_with(evidence); }) == 1);
}

TEST_CASE("self-checks: a rise within the luck of the search is not spoken of") {
  const auto count_rises = [](double width) {
    const std::vector<Flag> flags = flags_of(scaling({{8, 4000}, {16, 2000}, {32, 1000}, {64, 1120}}, 12, width));
    return std::count_if(flags.begin(), flags.end(), [](const Flag& flag) { return flag.rule == "steps-rise"; });
  };
  CHECK(count_rises(2) == 0);     // The fourth best trial at 32 needs more than 1120.
  CHECK(count_rises(0.05) == 1);  // All trials at 32 need about 1000.
}

TEST_CASE("self-checks: a published shape, 5 to 12 successes, steps fall 3.4 times for one doubling, is refused") {
  StudyData study;
  const std::vector<std::tuple<int64_t, double, int64_t>> shape = {
      {128, 9000, 12}, {256, 5600, 9}, {512, 4100, 7}, {1024, 1200, 5}, {2048, 900, 8}};
  for (const auto& [batch_size, best, successes] : shape)
    study.batches.push_back(make_batch(batch_size, 100, 20000, [&](int64_t, double, int64_t id) -> std::optional<double> {
      const int64_t rank = id - 40;  // In the middle of the space; widely spread.
      if (rank < 0 || rank >= successes) return std::nullopt;
      return best * (1 + 0.5 * static_cast<double>(rank));
    }));
  const std::vector<Flag> flags = flags_of(study);
  CAPTURE(all_text(flags));
  const Flag* flag = find(flags, "examples-fall", 512);
  REQUIRE(flag != nullptr);
  CHECK(flag->refuses);
  CHECK(flag->advice.find("epochs") != std::string::npos);
  CHECK(analyse(study, kGoal, {.num_resamples = 10}).regimes.refused);
}

TEST_CASE("self-checks of tables: small faults are named, those as large as the rules' tolerance refuse") {
  // ResNet-8's published dip of 17 % at 16; an LSTM's rise of 8 %.
  std::vector<Flag> flags = check_curve(table({{2, 125000}, {4, 62500}, {8, 31250}, {16, 12970}, {32, 7813}, {64, 4000}}));
  REQUIRE(find(flags, "examples-fall", 2) != nullptr);
  CHECK(flags.size() == 1);
  CHECK_FALSE(flags[0].refuses);
  flags = check_curve(table({{256, 9000}, {1024, 4000}, {4096, 3000}, {32768, 3240}}));
  REQUIRE(find(flags, "steps-rise", 32768) != nullptr);
  CHECK_FALSE(flags[0].refuses);
  CHECK(check_curve(table({{256, 9000}, {1024, 4000}, {4096, 3000}, {32768, 3100}})).empty());
  flags = check_curve(table({{8, 1000}, {16, 500}, {32, 700}}));
  REQUIRE(find(flags, "steps-rise", 32) != nullptr);
  CHECK(find(flags, "steps-rise", 32)->refuses);
  flags = check_curve(table({{8, 3000}, {16, 800}, {32, 350}, {64, 175}}));
  REQUIRE(flags.size() == 1);  // One flag for batch size 8, with the strongest evidence.
  CHECK(flags[0].batch_size == 8);
  CHECK(flags[0].refuses);
  CHECK(flags[0].evidence.find("11200") != std::string::npos);
  flags = check_curve(table({{8, 100}, {16, 50}}));
  REQUIRE(find(flags, "few-batch-sizes", 0) != nullptr);
  CHECK(flags[0].refuses);
}

TEST_CASE("self-checks: rounding of small step counts is not a rise") {
  StudyData study = scaling({{8, 12}, {16, 6}, {32, 3}, {64, 3}});
  study.batches[3] =
      make_batch(64, 30, 100, [](int64_t, double unit, int64_t) -> std::optional<double> { return 4 + 10 * std::abs(unit - 0.5); });
  const std::vector<Flag> flags = flags_of(study);  // 3, then 4: the result at 64 lies in (3, 4].
  CHECK(find(flags, "steps-rise", 64) == nullptr);
  for (const int64_t batch_size : {8, 16, 32, 64}) {
    const Flag* flag = find(flags, "coarse", batch_size);
    REQUIRE(flag != nullptr);
    CHECK_FALSE(flag->refuses);
  }
  CHECK(find(flags, "coarse", 8)->evidence.find("evaluation 12 of") != std::string::npos);
}

TEST_CASE("self-checks: few trials, budget, infeasible share, goal not reached") {
  const auto of_one = [](int64_t num_trials, int64_t budget, const made_up::StepsOf& steps_of) {
    StudyData study;
    study.batches.push_back(make_batch(64, num_trials, budget, steps_of));
    return flags_of(study);
  };
  const auto reach = [](int64_t count, double steps) {
    return [=](int64_t, double, int64_t id) -> std::optional<double> {
      return id >= 10 && id < 10 + count ? std::optional(steps) : std::nullopt;
    };
  };
  CHECK(find(of_one(20, 1000, reach(5, 500)), "few-trials", 64) == nullptr);
  CHECK_FALSE(find(of_one(20, 1000, reach(3, 500)), "few-trials", 64)->refuses);
  std::vector<Flag> flags = of_one(20, 1000, reach(2, 500));
  REQUIRE(find(flags, "few-trials", 64) != nullptr);
  CHECK(find(flags, "few-trials", 64)->refuses);
  CHECK(find(flags, "few-trials", 64)->evidence.find("only 2 of 20 trials") != std::string::npos);

  CHECK(find(of_one(20, 1000, reach(8, 750)), "budget", 64) == nullptr);
  flags = of_one(20, 1000, reach(8, 751));
  REQUIRE(find(flags, "budget", 64) != nullptr);
  CHECK(find(flags, "budget", 64)->refuses);
  CHECK(find(flags, "budget", 64)->advice.find("1502") != std::string::npos);

  const auto diverging = [](int64_t count) {
    return [=](int64_t, double, int64_t id) -> std::optional<double> { return id < 20 - count ? 500.0 : -1.0; };
  };
  CHECK(find(of_one(20, 1000, diverging(12)), "infeasible", 64) == nullptr);
  flags = of_one(20, 1000, diverging(13));
  REQUIRE(find(flags, "infeasible", 64) != nullptr);
  CHECK_FALSE(find(flags, "infeasible", 64)->refuses);
  CHECK(find(flags, "infeasible", 64)->evidence.find("13 of 20") != std::string::npos);

  flags = of_one(20, 1000, reach(0, 0));
  REQUIRE(find(flags, "not-reached", 64) != nullptr);
  CHECK(find(flags, "not-reached", 64)->evidence.find("in up to 1000 steps (the best was 0.5)") != std::string::npos);
  flags = of_one(20, 1000, diverging(20));
  REQUIRE(find(flags, "not-reached", 64) != nullptr);
  CHECK(find(flags, "not-reached", 64)->evidence.find("20 diverged") != std::string::npos);
}

TEST_CASE("self-checks: trials that were stopped") {
  StudyData study = scaling({{8, 4000}, {16, 2000}, {32, 1000}});
  // All but the best and one are stopped at the best steps.
  for (BatchStudy& batch : study.batches) {
    const int64_t best = steps_to_result(batch, kGoal).trial_id;
    const int64_t steps = *steps_to_result(batch, kGoal).steps;
    for (Trial& trial : batch.trials)
      if (trial.id != best && trial.id != 0) {
        trial = made_up::make_trial(trial.id, trial.parameters["learning_rate"], steps, false, TrialStatus::kCensored);
      }
  }
  std::vector<Flag> flags = flags_of(study);
  CAPTURE(all_text(flags));
  REQUIRE(flags.size() == 1);  // They do not speak against the search, nor do they prove it.
  CHECK(flags[0].rule == "censored");
  CHECK_FALSE(flags[0].refuses);
  CHECK(flags[0].evidence.find("8, 16, 32") != std::string::npos);
  CHECK(flags[0].advice.find("in a new folder") != std::string::npos);  // Where it was made, another margin is refused.
  // Six trials, of which two or three go on to the goal, are as few as without censoring; so are twelve of which the others came to
  // nothing.
  const auto num_reached_of = [](int64_t num_trials, int64_t num_reached, TrialStatus others) {
    StudyData small = {.goals = {kGoal}};
    small.batches.push_back({.batch_size = 8, .num_trials = num_trials, .train_steps = 8000});
    for (int64_t id = 0; id < num_trials; ++id) {
      const bool reaches = id < num_reached, is_cut = !reaches && others == TrialStatus::kCensored;
      const int64_t steps = reaches ? 1000 + 100 * id : is_cut ? 1500 : 8000;
      small.batches[0].trials.push_back(made_up::make_trial(id, 0.1, steps, reaches, reaches ? TrialStatus::kComplete : others));
    }
    return flags_of(small);
  };
  const std::vector<Flag> two = num_reached_of(6, 2, TrialStatus::kCensored), three = num_reached_of(6, 3, TrialStatus::kCensored);
  REQUIRE(find(two, "few-trials", 8) != nullptr);
  CHECK(find(two, "few-trials", 8)->refuses);
  CHECK(find(two, "few-trials", 8)->evidence.find("; 4 more were stopped behind the best, too few to judge") != std::string::npos);
  REQUIRE(find(three, "few-trials", 8) != nullptr);
  CHECK_FALSE(find(three, "few-trials", 8)->refuses);
  CHECK(find(num_reached_of(12, 2, TrialStatus::kComplete), "few-trials", 8)->refuses);
  CHECK(find(num_reached_of(12, 2, TrialStatus::kCensored), "few-trials", 8) == nullptr);
  CHECK(find(num_reached_of(6, 5, TrialStatus::kCensored), "few-trials", 8) == nullptr);
  // A goal that no one had when they were stopped.
  const GoalSpec harder = {.metric = kValError, .value = 0.01};
  for (BatchStudy& batch : study.batches) batch.trials[0].measurements.back().values[kValError] = 0.005;
  flags = flags_of(study, harder);
  REQUIRE(find(flags, "censored", 16) != nullptr);
  CHECK(find(flags, "censored", 16)->refuses);
}

TEST_CASE("self-checks: best at a bound, evidence or chance, wall") {
  const auto at_edge = [](int64_t num_infeasible) {
    // Steps fall towards the upper end of the learning rate.
    return make_batch(64, 40, 4000, [=](int64_t, double unit, int64_t id) -> std::optional<double> {
      if (id >= 40 - num_infeasible) return -1;
      return 500 * std::exp(2 * (1 - unit));
    });
  };
  StudyData study;
  study.batches = {at_edge(0)};
  std::vector<Flag> flags = flags_of(study);
  const Flag* flag = find(flags, "bound", 64);
  REQUIRE(flag != nullptr);
  CHECK(flag->refuses);
  CHECK(flag->evidence.find("learning_rate") != std::string::npos);
  CHECK(flag->advice == "widen learning_rate to [0.001, 10] and search 64 again");
  SearchSpace wider = widened_space(study.batches[0], kGoal, steps_to_result(study.batches[0], kGoal));
  REQUIRE(wider.size() == 1);
  CHECK(wider[0].maximum == doctest::Approx(10));
  CHECK(wider[0].minimum == 1e-3);
  CHECK(widened_search_text(study, kGoal, steps_to_result(study, kGoal)) ==
        "[batch.64.search]\nlearning_rate = { type = \"double\", scale = \"log\", min = 0.001, max = 10 }\n");
  // An integer hyperparameter that means nothing, at its end by chance.
  study.batches[0].space.push_back({.name = "warmup_steps", .type = Hyperparameter::Type::kInteger, .minimum = 10, .maximum = 500});
  for (Trial& trial : study.batches[0].trials) trial.parameters["warmup_steps"] = static_cast<double>(10 + random_bits(5, trial.id) % 490);
  study.batches[0].trials[39].parameters["warmup_steps"] = 495;
  flags = flags_of(study);
  CHECK(std::count_if(flags.begin(), flags.end(), [](const Flag& each) { return each.rule == "bound" && each.refuses; }) == 1);
  CHECK(std::count_if(flags.begin(), flags.end(), [](const Flag& each) { return each.rule == "bound" && !each.refuses; }) == 1);
  CHECK(all_text(flags).find("may not matter") != std::string::npos);
  // The best at the wall: what lies beyond diverges.
  study.batches = {at_edge(1)};  // The last of 40 points diverges, one more stands inside of the tenth that is looked at.
  for (const int64_t id : {36, 37}) study.batches[0].trials[id].status = TrialStatus::kInfeasible;
  flags = flags_of(study);
  CAPTURE(all_text(flags));
  CHECK(find(flags, "bound", 64) == nullptr);
  REQUIRE(find(flags, "instability-wall", 64) != nullptr);
  CHECK_FALSE(find(flags, "instability-wall", 64)->refuses);
  CHECK(widened_space(study.batches[0], kGoal, steps_to_result(study.batches[0], kGoal)).empty());
}

TEST_CASE("self-checks: a goal that is met before any training") {
  StudyData study = scaling({{8, 4000}, {16, 2000}, {32, 1000}});
  for (Trial& trial : study.batches[1].trials) trial.measurements[0].values[kValError] = 0.05;
  const std::vector<Flag> flags = flags_of(study);
  REQUIRE(find(flags, "coarse", 16) != nullptr);
  CHECK(find(flags, "coarse", 16)->evidence == "val_error<0.1 is met at batch size 16 at step 0, before any training");
  CHECK(find(flags, "coarse", 16)->advice.find("harder goal") != std::string::npos);
}

TEST_CASE("rank correlation: chance of a rise") {
  const std::vector<double> x = {1, 2, 3, 4, 5, 6, 7, 8}, up = {1, 3, 2, 4, 6, 5, 7, 8}, down(up.rbegin(), up.rend());
  CHECK(chance_of_rise(x, up) == doctest::Approx(0.00178).epsilon(0.01));  // Score 24, variance 65.33: z = 23 / 8.083.
  CHECK(chance_of_rise(x, down) == 1);
  CHECK(chance_of_rise(x, std::vector<double>(8, 2.0)) == 1);
  CHECK(chance_of_rise(std::vector<double>{1, 2, 3, 4}, std::vector<double>{1, 2, 3, 4}) == 1);
  // Two groups: the same as Mann and Whitney's test, variance n m (n + m + 1) / 3 in units of the score.
  const std::vector<double> groups = {0, 0, 0, 0, 1, 1, 1, 1};
  CHECK(chance_of_rise(x, groups) == doctest::Approx(0.5 * std::erfc(15 / std::sqrt(2 * 4 * 4 * 9 / 3.0))).epsilon(1e-9));
}

}  // namespace
}  // namespace cohort::study
