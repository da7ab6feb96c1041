#include "cohort/study/spec/spec.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"
#include "tests/support/errors.h"

namespace cohort::study {
namespace {

using Steps = std::vector<int64_t>;

Hyperparameter log_range(const std::string& name, double minimum, double maximum) {
  return {name, Hyperparameter::Type::kDouble, Hyperparameter::Scale::kLog, minimum, maximum, {}};
}
Hyperparameter fixed(const std::string& name, double value) {
  return {name, Hyperparameter::Type::kDiscrete, Hyperparameter::Scale::kLinear, 0, 0, {value}};
}

StudySpec spec_of(const std::string& optimizer, const SearchSpace& space) {
  StudySpec spec;
  spec.name = "s", spec.data = "fashion-mnist", spec.model = "fc", spec.optimizer = optimizer;
  spec.goals = {{kValError, 0.14}};
  spec.batches = {{8, 10, 100, space}, {16, 10, 50, space}};
  return spec;
}

std::string refusal(const StudySpec& spec) {
  return error_or_none([&] { check_spec(spec); });
}

TEST_CASE("evaluation steps: geometric, from 0 to the budget, without repeats") {
  CHECK(evaluation_steps(2, 16) == Steps{0, 1, 2, 4, 8, 16});
  CHECK(evaluation_steps(2, 17) == Steps{0, 1, 2, 4, 8, 16, 17});
  CHECK(evaluation_steps(1.5, 20) == Steps{0, 1, 2, 3, 5, 8, 12, 18, 20});
  CHECK(evaluation_steps(1, 4) == Steps{0, 1, 2, 3, 4});
  CHECK(evaluation_steps(10, 0) == Steps{0});
  CHECK(evaluation_steps(10, 1) == Steps{0, 1});
  CHECK(evaluation_steps(1e300, 1'000'000'000'000) == Steps{0, 1, 1'000'000'000'000});
  const Steps fine = evaluation_steps(1.1, 100);  // 1.1 x 10 is a little more than 11 in binary.
  CHECK(std::find(fine.begin(), fine.end(), 11) != fine.end());
  const Steps steps = evaluation_steps(1.05, 123'456);
  for (size_t i = 1; i < steps.size(); ++i) {
    REQUIRE(steps[i] > steps[i - 1]);
    const double exact = std::max(1.05 * static_cast<double>(steps[i - 1]), static_cast<double>(steps[i - 1] + 1));
    if (i + 1 < steps.size()) REQUIRE(std::abs(static_cast<double>(steps[i]) - exact) < 1.0);
  }
  CHECK(steps.back() == 123'456);
  CHECK(steps.size() < 250);
  CHECK_THROWS_AS(evaluation_steps(1, 1'000'000'000'000), Error);
}

TEST_CASE("trials: the same units at every batch size, whatever else is searched there") {
  const SearchSpace both = {log_range("learning_rate", 0.1, 10),
                            {"momentum", Hyperparameter::Type::kDouble, Hyperparameter::Scale::kLinear, 0, 0.5, {}}};
  StudySpec spec = spec_of("momentum", both);
  spec.batches[1].space = {log_range("learning_rate", 0.1, 10), fixed("momentum", 0.9), fixed("label_smoothing", 0.1)};
  for (int64_t id = 0; id < 20; ++id) {
    const Parameters one = parameters_of_trial(spec, spec.batches[0], id), other = parameters_of_trial(spec, spec.batches[1], id);
    CHECK(one.at("learning_rate") == other.at("learning_rate"));
    CHECK(other.at("momentum") == 0.9);
    CHECK(other.at("label_smoothing") == 0.1);
    CHECK(one.size() == 2);
    CHECK(one.at("learning_rate") >= 0.1);
    CHECK(one.at("momentum") <= 0.5);
    // Two searched numbers do not move together.
    if (id > 0) CHECK(unit_of(both[0], one.at("learning_rate")) != doctest::Approx(unit_of(both[1], one.at("momentum"))).epsilon(1e-6));
  }
  StudySpec again = spec;
  CHECK(parameters_of_trial(again, again.batches[0], 7) == parameters_of_trial(spec, spec.batches[0], 7));
  again.seed = 2;
  CHECK(parameters_of_trial(again, again.batches[0], 7) != parameters_of_trial(spec, spec.batches[0], 7));
}

TEST_CASE("spec: spaces that fit the optimizer pass") {
  CHECK(refusal(spec_of("sgd", {log_range("learning_rate", 0.1, 1)})) == "");
  CHECK(refusal(spec_of("nesterov",
                        {fixed("learning_rate", 0.1), fixed("momentum", 0), fixed("decay_fraction", 1), fixed("end_factor", 0)})) == "");
  CHECK(refusal(spec_of("adamw", {fixed("learning_rate", 0.1), fixed("beta1", 0.9), fixed("epsilon", 1e-8), fixed("weight_decay", 0)})) ==
        "");
}

TEST_CASE("spec: what contradicts itself is refused with a sentence") {
  const Hyperparameter rate = log_range("learning_rate", 0.1, 1);
  const auto refused = [](const StudySpec& spec, const std::string& text) {
    const std::string error = refusal(spec);
    CHECK_MESSAGE(error.find(text) != std::string::npos, "wanted: ", text, " found: ", error);
    CHECK(error.find('\n') == std::string::npos);
  };
  refused(spec_of("sgd", {}), "batch size 8: no learning_rate");
  refused(spec_of("sgd", {rate, rate}), "twice");
  refused(spec_of("sgd", {rate, fixed("momentum", 0.9)}), "momentum: the optimizer \"sgd\" has none; it belongs to momentum and nesterov");
  refused(spec_of("nesterov", {rate}), "no momentum is searched or fixed");
  refused(spec_of("nesterov", {rate, fixed("beta1", 0.9)}), "belongs to adam and adamw");
  refused(spec_of("sgd", {rate, fixed("decay_steps", 5), fixed("decay_fraction", 0.5)}), "give one of them");
  refused(spec_of("sgd", {rate, fixed("end_factor", 0.5)}), "end_factor without");
  refused(spec_of("sgd", {fixed("learning_rate", 0)}), "out of range; expected more than 0");
  refused(spec_of("momentum", {rate, fixed("momentum", 1)}), "expected at least 0 and less than 1");
  refused(spec_of("sgd", {rate, fixed("decay_fraction", 1.5)}), "at most 1");
  refused(spec_of("sgd", {rate, fixed("decay_steps", 5.5)}), "not a whole number");
  refused(spec_of("sgd", {rate, log_range("decay_steps", 5, 50)}), "its type is integer");
  refused(spec_of("sgd", {rate, fixed("learning_rat", 1)}), "did you mean 'learning_rate'?");
  refused(spec_of("sgd", {rate, fixed("a\nb", 1)}), "unknown hyperparameter \"a\\x0ab\"");

  StudySpec spec = spec_of("sgd", {rate, fixed("weight_decay", 0.1)});
  CHECK(refusal(spec) == "");
  spec.weight_decay = 0.1;
  refused(spec, "both fixed in [workload] and searched");
  spec = spec_of("sgd", {rate});
  spec.goals = {{kTrainLoss, 0.5}};
  refused(spec, "does not measure train_loss; measured: val_loss val_error val_precision (with evaluate_train = true");
  spec.evaluate_train = true;
  CHECK(refusal(spec) == "");
  spec.goals = {{kValPrecision, 0.5}, {kTrainPrecision, 0.5}};  // Whether the data have labels is known once they are open.
  CHECK(refusal(spec) == "");
  spec.goals = {{kTestPrecision, 0.5}};
  refused(spec, "does not measure test_precision");
  spec.goals = {};
  refused(spec, "at least one goal");
  spec = spec_of("sgd", {rate});
  spec.batches[1].batch_size = 8;
  refused(spec, "rise");
  spec.batches[1] = {16, 0, 50, {rate}};
  refused(spec, "batch size 16: trials");
  spec.batches[1] = {16, 1, 0, {rate}};
  refused(spec, "batch size 16: steps");
  spec.batches = {};
  refused(spec, "at least one batch size");
}

TEST_CASE("spec: the noisy quadratic model measures its loss alone") {
  StudySpec spec = spec_of("momentum", {fixed("learning_rate", 0.1), fixed("momentum", 0.9)});
  spec.data = "noisy-quadratic:dimensions=10", spec.model = "";
  CHECK(refusal(spec).find("does not measure val_error; measured: val_loss") != std::string::npos);
  spec.goals = {{kValLoss, 0.1}};
  CHECK(refusal(spec) == "");
  for (BatchSpec& batch : spec.batches)  // What its trials know.
    for (const char* name : {"weight_decay", "decay_steps", "end_factor", "warmup_steps"}) batch.space.push_back(fixed(name, 1));
  CHECK(refusal(spec) == "");
  for (BatchSpec& batch : spec.batches) batch.space.push_back(fixed("label_smoothing", 0.1));
  CHECK(refusal(spec).find("no targets to smooth") != std::string::npos);
}

}  // namespace
}  // namespace cohort::study
