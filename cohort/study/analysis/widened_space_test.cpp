#include "cohort/study/analysis/widened_space.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "cohort/study/analysis/self_checks.h"
#include "tests/support/made_up_study.h"

namespace cohort::study {
namespace {

using made_up::kGoal;
using made_up::make_batch;

std::vector<Flag> flags_of(const StudyData& study) { return self_checks(study, kGoal, steps_to_result(study, kGoal)); }

/// The first of batch size 64.
const Flag* find(const std::vector<Flag>& flags, const std::string& rule) {
  for (const Flag& flag : flags)
    if (flag.rule == rule && flag.batch_size == 64) return &flag;
  return nullptr;
}

/// Trials of a list of learning rates, five of each; steps by value, none where they never reach the goal.
BatchStudy listed(const std::vector<double>& values, const std::function<std::optional<double>(double)>& steps_of) {
  const auto num = static_cast<int64_t>(5 * values.size());
  BatchStudy batch = make_batch(64, num, 4000, [&](int64_t, double, int64_t id) { return steps_of(values[id / 5]); });
  batch.space = {{.name = "learning_rate", .type = Hyperparameter::Type::kDiscrete, .values = values}};
  for (Trial& trial : batch.trials) trial.parameters["learning_rate"] = values[trial.id / 5];
  return batch;
}

TEST_CASE("bounds: best at the first or last of a list of numbers") {
  const std::vector<double> values = {0.01, 0.05, 0.1, 0.3, 0.5, 1.5};
  StudyData study;
  study.batches = {listed(values, [](double rate) { return 400 / rate; })};
  const std::vector<StepsToResult> steps = steps_to_result(study, kGoal);
  std::vector<Flag> flags = flags_of(study);
  const Flag* flag = find(flags, "bound");
  REQUIRE(flag != nullptr);
  CHECK(flag->refuses);
  CHECK(flag->evidence == "the best trial at batch size 64 (id 25) has learning_rate 1.5, the largest of its 6 values");
  CHECK(flag->advice == "add 4.09 and 11.1 to the values of learning_rate and search 64 again");  // 150^(1/5) = 2.724 apart.
  CHECK(widened_search_text(study, kGoal, steps) ==
        "[batch.64.search]\nlearning_rate = { values = [0.01, 0.05, 0.1, 0.3, 0.5, 1.5, 4.09, 11.1] }\n");
  // The other end of a list that falls: what is new goes where the list goes on.
  study.batches = {listed({1, 0.1, 0.01}, [](double rate) { return 500 * std::pow(rate, 0.3); })};
  CHECK(widened_search_text(study, kGoal, steps_to_result(study, kGoal)) ==
        "[batch.64.search]\nlearning_rate = { values = [1, 0.1, 0.01, 0.001, 1e-04] }\n");
  study.batches = {listed(values, [](double rate) { return rate == 0.3 ? 500.0 : 900.0; })};
  CHECK(find(flags_of(study), "bound") == nullptr);
  // All of the largest diverge but the best: a wall as it is one of a range.
  study.batches = {listed(values, [](double rate) { return 400 / rate; })};
  for (int64_t id = 26; id < 30; ++id) study.batches[0].trials[id].status = TrialStatus::kInfeasible;
  flags = flags_of(study);
  CHECK(find(flags, "bound") == nullptr);
  CHECK(find(flags, "instability-wall") != nullptr);
  // Texts of an archive count 0, 1, 2: they have no order, nor has a switch.
  study.batches = {listed({0, 1, 2}, [](double place) { return 900 - 100 * place; })};
  CHECK(find(flags_of(study), "bound") == nullptr);
  study.batches = {listed({0.1, 0.2}, [](double rate) { return 100 / rate; })};
  CHECK(find(flags_of(study), "bound") == nullptr);
}

/// No trial reaches the goal; errors by unit, negative: diverged.
BatchStudy unreached(int64_t num, const std::function<double(double unit)>& error_of) {
  BatchStudy batch = make_batch(64, num, 4000, [](int64_t, double, int64_t) { return std::nullopt; });
  for (Trial& trial : batch.trials) {
    const double error = error_of((static_cast<double>(trial.id) + 0.5) / static_cast<double>(num));
    if (error < 0) trial.status = TrialStatus::kInfeasible;
    for (Measurement& measurement : trial.measurements)
      if (measurement.step > 0) measurement.values[kValError] = error;
  }
  return batch;
}

TEST_CASE("bounds: where no trial reached the goal, the good ones at a bound") {
  StudyData study;
  const auto checked = [&](const BatchStudy& batch) {
    study.batches = {batch};
    return flags_of(study);
  };
  const auto offered = [&] { return widened_search_text(study, kGoal, steps_to_result(study, kGoal)); };
  const std::string wider = "[batch.64.search]\nlearning_rate = { type = \"double\", scale = \"log\", min = 1e-04, max = 1 }\n";
  const std::string lower = "widen learning_rate to [0.0001, 1] and search 64 again";

  // The nearest at the lower bound.
  std::vector<Flag> flags = checked(unreached(20, [](double unit) { return 0.2 + 0.5 * unit; }));
  REQUIRE(find(flags, "bound") != nullptr);
  CHECK_FALSE(find(flags, "bound")->refuses);  // There is no point that could mislead.
  CHECK(find(flags, "bound")->evidence ==
        "the trial nearest to val_error<0.1 at batch size 64 (id 0) has learning_rate 0.001189, within 5 % of the lower bound 0.001");
  CHECK(find(flags, "bound")->advice == lower);
  CHECK(find(flags, "not-reached")->advice.find("search the wider space first") == 0);
  CHECK(offered() == wider);

  // Three of 20 do not diverge, not within 5 %, and the nearest is the farthest from the bound.
  flags = checked(unreached(20, [](double unit) { return unit < 0.06 || unit > 0.2 ? -1 : 0.5 - unit; }));
  REQUIRE(find(flags, "bound") != nullptr);
  CHECK(find(flags, "bound")->evidence ==
        "the 3 trials that count at batch size 64, of 20, all lie in the quarter of the space at the lower bound 0.001 of learning_rate; "
        "those elsewhere diverged");
  CHECK(find(flags, "bound")->advice == lower);
  CHECK(offered() == wider);

  // All diverged.
  flags = checked(unreached(20, [](double) { return -1; }));
  REQUIRE(find(flags, "bound") != nullptr);
  CHECK(find(flags, "bound")->evidence == "all 20 trials at batch size 64 diverged, down to the lower bound 0.001 of learning_rate");
  CHECK(find(flags, "bound")->advice == lower);
  CHECK(offered() == wider);

  // Nothing to say: the nearest in the middle; nothing was learned anywhere; a few of the low ones diverged too.
  flags = checked(unreached(20, [](double unit) { return 0.2 + std::abs(unit - 0.5); }));
  CHECK(find(flags, "bound") == nullptr);
  CHECK(find(flags, "not-reached")->advice == "raise train_steps, search more points, or take an easier goal");
  CHECK(find(checked(unreached(20, [](double) { return 0.5; })), "bound") == nullptr);
  CHECK(offered().empty());
  CHECK(find(checked(unreached(20, [](double unit) { return unit < 0.2 || (unit > 0.4 && unit < 0.5) ? 0.5 : -1; })), "bound") == nullptr);

  // Of a hyperparameter that means nothing one trial in its quarter is chance; the learning rate's lower end is not.
  BatchStudy batch = unreached(20, [](double unit) { return unit < 0.05 ? 0.5 : -1; });
  batch.space.push_back({.name = "momentum", .minimum = 0.1, .maximum = 0.8});
  for (Trial& trial : batch.trials) trial.parameters["momentum"] = 0.1 + 0.7 * ((static_cast<double>(7 * trial.id % 20) + 3) / 23);
  flags = checked(batch);
  CHECK(std::count_if(flags.begin(), flags.end(), [](const Flag& flag) { return flag.rule == "bound"; }) == 1);
  CHECK(find(flags, "bound")->advice == lower);
}

TEST_CASE("bounds: a bound near 1 has the digits that tell it from 1") {
  CHECK(value_text(0.99999) == "0.99999");
  CHECK(value_text(1 - 1e-12) == "0.999999999999");
  CHECK(value_text(0.9978) == "0.9978");
  CHECK(value_text(0.998765432) == "0.998765");
  CHECK(value_text(0.75) == "0.75");
  CHECK(value_text(std::nextafter(1, 0)) != "1");
  CHECK(value_text(1) == "1");
  CHECK(value_text(0) == "0");
  CHECK(value_text(1e-4) == "0.0001");
  CHECK(value_text(12345) == "12345");
  BatchStudy batch = make_batch(64, 40, 4000, [](int64_t, double unit, int64_t) { return std::optional(500 * std::exp(2 * unit)); });
  batch.space = {{.name = "momentum", .scale = Hyperparameter::Scale::kReverseLog, .minimum = 0.9, .maximum = 0.9999}};
  for (Trial& trial : batch.trials) trial.parameters = {{"momentum", value_at(batch.space[0], (trial.id + 0.5) / 40)}};
  StudyData study;
  study.batches = {batch};
  const std::vector<Flag> flags = flags_of(study);
  REQUIRE(find(flags, "bound") != nullptr);
  CHECK(find(flags, "bound")->advice == "widen momentum to [0.9, 0.99999] and search 64 again");
  CHECK(find(flags, "bound")->evidence.find("the upper bound 0.9999") != std::string::npos);
}

TEST_CASE("values beyond a list go on as its values do, and only where there is room") {
  using Values = std::vector<double>;
  const auto list = [](const std::string& name, const Values& values) {
    return Hyperparameter{.name = name, .type = Hyperparameter::Type::kDiscrete, .values = values};
  };
  CHECK(values_beyond(list("learning_rate", {0.1, 0.001, 0.01}), true) == Values{1, 10});
  CHECK(values_beyond(list("learning_rate", {0.1, 0.001, 0.01}), false) == Values{1e-4, 1e-5});
  CHECK(values_beyond(list("learning_rate", {1, 2, 3}), true) == Values{4, 5});
  CHECK(values_beyond(list("learning_rate", {1, 2, 3}), false) == Values{0.5, 0.25});
  CHECK(values_beyond(list("weight_decay", {0, 1e-4, 1e-3}), true) == Values{0.01, 0.1});
  CHECK(values_beyond(list("weight_decay", {0, 1e-4, 1e-3}), false).empty());
  CHECK(values_beyond(list("momentum", {0.9, 0.99, 0.999}), true) == Values{0.9999, 0.99999});
  CHECK(values_beyond(list("momentum", {0.9, 0.99, 0.999}), false) == Values{0});
  CHECK(values_beyond(list("decay_fraction", {0.5, 0.75, 1}), true).empty());
  CHECK(values_beyond(list("decay_fraction", {0.5, 0.7, 0.9}), true) == Values{1});
  CHECK(values_beyond(list("warmup_steps", {10, 30, 100}), true) == Values{316, 1000});
  CHECK(values_beyond(list("learning_rate", {1, 1.0001, 1.0002}), true).size() == 2);  // Closer together than three digits tell.
}

TEST_CASE("bounds move by a decade or half a width, and only where there is room") {
  using Scale = Hyperparameter::Scale;
  using Type = Hyperparameter::Type;
  const Hyperparameter rate = {.name = "learning_rate", .scale = Scale::kLog, .minimum = 1e-4, .maximum = 10};
  CHECK(*widened_end(rate, true) == doctest::Approx(100));
  CHECK(*widened_end(rate, false) == doctest::Approx(1e-5));
  const Hyperparameter momentum = {.name = "momentum", .scale = Scale::kReverseLog, .minimum = 0.9, .maximum = 0.9999};
  CHECK(*widened_end(momentum, true) == doctest::Approx(0.99999));
  CHECK(*widened_end(momentum, false) == doctest::Approx(0));
  CHECK_FALSE(widened_end({.name = "momentum", .scale = Scale::kReverseLog, .minimum = 0, .maximum = 0.9}, false).has_value());
  CHECK(*widened_end({.name = "momentum", .minimum = 0.5, .maximum = 0.9}, true) == doctest::Approx(0.95));
  CHECK(*widened_end({.name = "momentum", .minimum = 0.1, .maximum = 0.9}, false) == doctest::Approx(0.05));
  CHECK_FALSE(widened_end({.name = "end_factor", .scale = Scale::kLog, .minimum = 1e-4, .maximum = 1}, true).has_value());
  CHECK(*widened_end({.name = "end_factor", .scale = Scale::kLog, .minimum = 1e-4, .maximum = 0.1}, true) == doctest::Approx(1));
  CHECK_FALSE(widened_end({.name = "decay_fraction", .minimum = 0.5, .maximum = 1}, true).has_value());
  const Hyperparameter decay = {.name = "decay_steps", .type = Type::kInteger, .minimum = 300, .maximum = 601};
  CHECK(*widened_end(decay, true) == 752);
  CHECK(*widened_end(decay, false) == 150);
  CHECK_FALSE(widened_end({.name = "n", .type = Type::kInteger, .scale = Scale::kLog, .minimum = 1, .maximum = 64}, false).has_value());
}

}  // namespace
}  // namespace cohort::study
