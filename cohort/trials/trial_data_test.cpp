#include "cohort/trials/trial_data.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/trials/trial_step.h"

namespace cohort {
namespace {

DataSet pictures() { return open_data("synthetic:1x8x8,classes=4,samples=60", {.validation_samples = 10, .seed = 5}); }

TEST_CASE("a batch is what the source gives") {
  const DataSet text = open_data("synthetic:text,samples=40", {.context = 6, .seed = 5});
  for (const DataSet& data : {pictures(), text})
    for (const int64_t limit : {INT64_C(0), INT64_C(1) << 30}) {
      const TrialSamples samples(data.train, 0, limit);
      CHECK(samples.is_resident() == (limit > 0 && data.train->shape().kind == DataShape::Kind::kImage));
      TrialBatch batch;
      const auto check = [&](const std::vector<int64_t>& indices) {
        Batch expected;
        data.train->read(indices, expected);
        REQUIRE(batch.num_samples() == std::ssize(indices));
        CHECK(batch.input().sizes().slice(1).vec() == data.train->shape().input);
        CHECK(std::ranges::equal(expected.targets, std::span(batch.target().const_data_ptr<int64_t>(), expected.targets.size())));
        if (!expected.values.empty())
          CHECK(std::ranges::equal(expected.values, std::span(batch.input().const_data_ptr<float>(), expected.values.size())));
        else CHECK(std::ranges::equal(expected.tokens, std::span(batch.input().const_data_ptr<int64_t>(), expected.tokens.size())));
      };
      // Growing, shrinking, repeated samples; a view between.
      for (const std::vector<int64_t>& indices : {std::vector<int64_t>{3, 1}, {0, 2, 2, 7, 5}, {4}, {9, 8}}) {
        batch.gather(samples, indices);
        check(indices);
      }
      batch.view(samples, 2, 5);
      check({2, 3, 4});
      batch.gather(samples, std::vector<int64_t>{6, 1});
      check({6, 1});
    }
}

TEST_CASE("the first samples alone") {
  CHECK(TrialData(pictures(), {.train_samples = 7}).train.num_samples() == 7);
  CHECK(TrialData(pictures(), {.train_samples = 7}).validation.num_samples() == 10);
  CHECK(TrialData(pictures()).train.num_samples() == 50);
  CHECK_THROWS_AS(TrialData(pictures(), {.train_samples = 51}), Error);
  CHECK_THROWS_AS(TrialData(pictures(), {.train_samples = -1}), Error);
}

TEST_CASE("a trial's learning rate") {
  study::StudySpec spec;
  spec.optimizer = "momentum";
  spec.weight_decay = 0.5;
  TrialSchedule constant = trial_schedule(spec, {{"learning_rate", 2}, {"momentum", 0.7}}, 100);
  CHECK(constant.learning_rate.at(0, 0) == 2);
  CHECK(constant.learning_rate.at(1000, 0) == 2);
  CHECK(constant.rule.momentum == 0.7);
  CHECK(constant.rule.weight_decay == 0.5);
  // lr (1 - (1 - a) t / T), then a lr.
  const TrialSchedule decay = trial_schedule(spec, {{"learning_rate", 2}, {"decay_steps", 50}, {"end_factor", 0.1}}, 100);
  CHECK(decay.learning_rate.at(0, 0) == doctest::Approx(2));
  CHECK(decay.learning_rate.at(25, 0) == doctest::Approx(1.1));
  CHECK(decay.learning_rate.at(50, 0) == doctest::Approx(0.2));
  CHECK(decay.learning_rate.at(99, 0) == doctest::Approx(0.2));
  const TrialSchedule both = trial_schedule(
      spec, {{"learning_rate", 2}, {"decay_fraction", 0.5}, {"end_factor", 0.1}, {"warmup_steps", 4}, {"weight_decay", 0}}, 100);
  CHECK(both.learning_rate.decay_steps == 50);
  CHECK(both.rule.weight_decay == 0);
  CHECK(both.learning_rate.at(0, 0) == doctest::Approx(0.5));
  CHECK(both.learning_rate.at(3, 0) == doctest::Approx(2));
  CHECK(both.learning_rate.at(4, 0) == doctest::Approx(2));
  CHECK(both.learning_rate.at(29, 0) == doctest::Approx(1.1));
  for (const study::Parameters& bad : {study::Parameters{},
                                       {{"learning_rate", -1}},
                                       {{"learning_rate", 1}, {"momentum", 1}},
                                       {{"learning_rate", 1}, {"beta2", 1}},
                                       {{"learning_rate", 1}, {"label_smoothing", 1.5}},
                                       {{"learning_rate", 1}, {"decay_steps", -3}},
                                       {{"learning_rate", NAN}}})
    CHECK_THROWS_AS(trial_schedule(spec, bad, 100), Error);
}

}  // namespace
}  // namespace cohort
