#include <doctest/doctest.h>

#include <functional>

#include "cohort/base/fail.h"
#include "cohort/base/text/toml_text.h"
#include "cohort/study/spec/spec.h"

namespace cohort::study {
namespace {

const std::string kSpec = R"(unknown = ["Quotes \" and \\ and a tab\t", "two"]
[workload]
name = "mine"
data = "text:/a \"b\""
synthetic = "synthetic:text,samples=100"
model = "lstm:hidden=64"
optimizer = "nesterov"
[study]
goals = ["val_loss<2.5", "val_error<0.1"]
batch_sizes = [8, 64, 512]
trials = [20, 20, 30]
steps = 100
evaluation_ratio = 1.0333333333333334
[search]
learning_rate = { scale = "log", min = 1e-3, max = 3.2 }
momentum = { scale = "reverse-log", min = 0, max = 0.99999999 }
label_smoothing = { values = [0.1, 0, 0.01] }
[batch.8.search]
decay_steps = { min = 10, max = 100 }
[batch.512.search]
momentum = 0.9
learning_rate = { scale = "log", min = 1e-2, max = 3.2 }
)";

StudySpec parsed() { return parse_spec(kSpec, "my.toml"); }

TEST_CASE("spec: numbers and strings read back") {
  for (const double value : {0.1, 1e-5, 3.0, 1.0 / 3, 1e300, -2.5e-300}) CHECK(std::stod(number_text(value)) == value);
  CHECK(number_text(0.1) == "0.1");
  CHECK(toml_string("a\"\\\n\x7f") == "\"a\\\"\\\\\\u000a\\u007f\"");
}

TEST_CASE("spec: what is written reads back to the same") {
  const StudySpec spec = parsed();
  const std::string toml = to_toml(spec);
  const StudySpec again = parse_spec(toml, "again.toml");
  CHECK(to_toml(again) == toml);
  CHECK(fingerprint(again) == fingerprint(spec));
  CHECK(explain_difference(fingerprint(spec), fingerprint(again)) == "");
  CHECK(again.unknown == spec.unknown);
  CHECK(again.name == spec.name);
  CHECK(again.data == "text:/a \"b\"");
  CHECK(again.synthetic == spec.synthetic);
  CHECK(again.evaluation_ratio == spec.evaluation_ratio);
  REQUIRE(again.batches.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(again.batches[i].num_trials == spec.batches[i].num_trials);
    CHECK(again.batches[i].train_steps == 100);
    CHECK(again.batches[i].space.size() == (i == 0 ? 4 : 3));
    for (int64_t id = 0; id < 5; ++id)
      CHECK(parameters_of_trial(again, again.batches[i], id) == parameters_of_trial(spec, spec.batches[i], id));
  }
}

TEST_CASE("spec: defaults and the rest of the tables read back too") {
  StudySpec spec = parsed();
  spec.censor = false, spec.halving = true, spec.censor_margin = 1.5, spec.max_batch_per_worker = 3, spec.max_microbatch = 7;
  spec.seed = 77, spec.max_draws_factor = 3, spec.diverged_above = 12.5, spec.evaluate_train = true;
  spec.train_samples = 5, spec.val_samples = 6, spec.context = 16, spec.weight_decay = 1e-4;
  const StudySpec again = parse_spec(to_toml(spec), "again.toml");
  CHECK_FALSE(again.censor);
  CHECK(again.halving);
  CHECK(again.censor_margin == 1.5);
  CHECK(again.max_batch_per_worker == 3);
  CHECK(again.max_microbatch == 7);
  CHECK(again.max_draws_factor == 3);
  CHECK(fingerprint(again) == fingerprint(spec));
  CHECK(again.unknown.size() == 2);
}

std::string difference(const std::function<void(StudySpec&)>& change) {
  StudySpec changed = parsed();
  change(changed);
  return explain_difference(fingerprint(parsed()), fingerprint(changed));
}

TEST_CASE("fingerprint: a study may grow") {
  CHECK(fingerprint(parsed()).find('\n') == std::string::npos);
  CHECK(difference([](StudySpec& spec) { spec.batches[1].num_trials = 50, spec.batches[1].train_steps = 200; }) == "");
  CHECK(difference([](StudySpec& spec) { spec.batches.push_back({1024, 5, 5, spec.batches[1].space}); }) == "");
  CHECK(difference([](StudySpec& spec) { spec.batches.erase(spec.batches.begin() + 1); }) == "");
  CHECK(difference([](StudySpec& spec) { --spec.batches[0].num_trials; }) == "");
  CHECK(difference([](StudySpec& spec) { spec.goals.insert(spec.goals.begin(), {kValLoss, 1.5}); }) == "");
  CHECK(difference([](StudySpec& spec) { spec.name = "x", spec.max_microbatch = 8, spec.unknown = {}, spec.dataset_name = "y"; }) == "");
}

TEST_CASE("fingerprint: anything else that changed is named") {
  const auto named = [](const std::string& text, const std::function<void(StudySpec&)>& change) {
    CHECK_MESSAGE(difference(change).find(text) != std::string::npos, "wanted: ", text, " found: ", difference(change));
  };
  named("data was \"text:/a \"b\"\" and is \"mnist\"", [](StudySpec& spec) { spec.data = "mnist"; });
  named("model was", [](StudySpec& spec) { spec.model = "fc"; });
  named("optimizer was \"nesterov\" and is \"momentum\"", [](StudySpec& spec) { spec.optimizer = "momentum"; });
  named("context was 64 and is 32", [](StudySpec& spec) { spec.context = 32; });
  named("seed was 1 and is 2", [](StudySpec& spec) { spec.seed = 2; });
  named("evaluation_ratio was", [](StudySpec& spec) { spec.evaluation_ratio = 1.5; });
  named("margin was 1.0 and is 2.0", [](StudySpec& spec) { spec.censor_margin = 2; });
  named("censoring was true and is false", [](StudySpec& spec) { spec.censor = false; });
  named("weight_decay was", [](StudySpec& spec) { spec.weight_decay = 0.5; });
  named("image_size was 0 and is 14", [](StudySpec& spec) { spec.image_size = 14; });
  named("train_samples was", [](StudySpec& spec) { spec.train_samples = 5; });
  named("val_samples was", [](StudySpec& spec) { spec.val_samples = 5; });
  named("diverged_above was", [](StudySpec& spec) { spec.diverged_above = 5; });
  named("the goal val_error<0.1 is gone", [](StudySpec& spec) { spec.goals.pop_back(); });
  named("steps at batch size 8 were 100 and are only 99", [](StudySpec& spec) { --spec.batches[0].train_steps; });
  named("learning_rate at batch size 64 was double log 0.001 to 3.2 and is double log 0.001 to 3",
        [](StudySpec& spec) { spec.batches[1].space[0].maximum = 3; });
  named("momentum at batch size 512 was 0.9 and is not searched",
        [](StudySpec& spec) { spec.batches[2].space.erase(spec.batches[2].space.begin() + 1); });
  named("decay_fraction at batch size 64 was not searched and is 0.5", [](StudySpec& spec) {
    spec.batches[1].space.push_back({"decay_fraction", Hyperparameter::Type::kDiscrete, Hyperparameter::Scale::kLinear, 0, 0, {0.5}});
  });
  named("; ", [](StudySpec& spec) { spec.seed = 2, spec.context = 32; });
}

TEST_CASE("fingerprint: what two runs asked for, together") {
  const StudySpec all = parsed();
  REQUIRE(all.batches.size() == 3);
  for (size_t left_out = 0; left_out < 3; ++left_out) {
    StudySpec part = all;
    part.batches.erase(part.batches.begin() + static_cast<std::ptrdiff_t>(left_out));
    CHECK(to_toml(merge_specs(all, part)) == to_toml(all));
    CHECK(to_toml(merge_specs(part, all)) == to_toml(all));
  }
  StudySpec now = all;
  now.batches = {all.batches[1], {1024, 5, 50, all.batches[1].space}};
  now.batches[0].num_trials = 3, now.batches[0].train_steps = 200;
  now.goals.push_back({kValLoss, 1.5});
  now.max_microbatch = 8;
  const StudySpec both = merge_specs(all, now);
  REQUIRE(both.batches.size() == 4);
  CHECK(both.batches[0].batch_size == 8);
  CHECK(both.batches[1].num_trials == 20);    // The larger,
  CHECK(both.batches[1].train_steps == 200);  // and of all else the later.
  CHECK(both.batches[3].batch_size == 1024);
  CHECK(both.goals.size() == all.goals.size() + 1);
  CHECK(both.max_microbatch == 8);
  CHECK_NOTHROW(check_spec(both));
  CHECK(explain_difference(fingerprint(all), fingerprint(both)) == "");
  CHECK(explain_difference(fingerprint(now), fingerprint(both)) == "");
}

TEST_CASE("fingerprint: a budget that decides where the learning rate falls may not grow") {
  StudySpec before = parsed();
  before.batches[0].space.back() = {"decay_fraction", Hyperparameter::Type::kDouble, Hyperparameter::Scale::kLinear, 0.5, 1, {}};
  StudySpec now = before;
  now.batches[0].train_steps = 200;
  CHECK(explain_difference(fingerprint(before), fingerprint(now)).find("moves every learning-rate decay") != std::string::npos);
}

TEST_CASE("fingerprint: what is none is refused") {
  for (const char* text : {"", "no", "[]x", "{\"batches\":{\"8\":{}}}", "{\"a\":1}", "{\"batches\":{\"8\":5}}"})
    CHECK_THROWS_AS(explain_difference(text, fingerprint(parsed())), Error);
}

}  // namespace
}  // namespace cohort::study
