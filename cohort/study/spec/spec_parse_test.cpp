#include <doctest/doctest.h>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/study/spec/spec.h"
#include "tests/support/mutation.h"

namespace cohort::study {
namespace {

const std::string kSpec = R"(unknown = ["Who knows?"]
[workload]
name = "mine"
data = "fashion-mnist"
synthetic = "synthetic:1x28x28,samples=100"
model = "fc:hidden=64,layers=3"
optimizer = "nesterov"
context = 32
val_samples = 500
train_samples = 1000
[study]
goals = ["val_error<0.14", "val_loss < 0.4"]
batch_sizes = [8, 64, 8192]
trials = 20
steps = [4000, 800, 100]
seed = 9
evaluation_ratio = 1.02
evaluate_train = true
max_draws_factor = 5
diverged_above = 100
[search]
momentum = { scale = "reverse-log", min = 0, max = 0.999 }
learning_rate = { scale = "log", min = 1e-3, max = 3.2 }
label_smoothing = { values = [0, 0.1] }
decay_steps = { min = 10, max = 100 }
[batch.8192]
trials = 30
[batch.8192.search]
momentum = 0.9
learning_rate = { type = "double", scale = "log", min = 1e-2, max = 32 }
[censoring]
enabled = false
margin = 2
[machine]
max_batch_per_worker = 1024
max_microbatch = 256
)";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE_MESSAGE(at != std::string::npos, from);
  return text.replace(at, from.size(), to);
}

/// The error of the spec in which `from` became `to`: it must have a place, one line and `text`.
void check_refused(const std::string& from, const std::string& to, const std::string& text) {
  std::string found = "(accepted)";
  try {
    parse_spec(replaced(kSpec, from, to), "my.toml");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kBadInput);
    found = error.what();
  }
  CHECK_MESSAGE(found.starts_with("my.toml:"), found);
  CHECK_MESSAGE(found.find('\n') == std::string::npos, found);
  CHECK_MESSAGE(found.find(text) != std::string::npos, "wanted: ", text, " found: ", found);
}

TEST_CASE("spec: every key is read") {
  const StudySpec spec = parse_spec(kSpec, "my.toml");
  CHECK_NOTHROW(check_spec(spec));
  CHECK(spec.unknown == std::vector<std::string>{"Who knows?"});
  CHECK(spec.name == "mine");
  CHECK(spec.data == "fashion-mnist");
  CHECK(spec.synthetic == "synthetic:1x28x28,samples=100");
  CHECK(spec.model == "fc:hidden=64,layers=3");
  CHECK(spec.optimizer == "nesterov");
  CHECK(spec.dataset_name == "fashion-mnist");
  CHECK(spec.model_name == "fc-hidden-64-layers-3");
  CHECK(spec.context == 32);
  CHECK(spec.val_samples == 500);
  CHECK(spec.train_samples == 1000);
  CHECK(spec.label_smoothing_over == "all");
  const StudySpec others =
      parse_spec(replaced(kSpec, "train_samples = 1000\n", "train_samples = 1000\nlabel_smoothing_over = \"others\"\n"), "my.toml");
  CHECK(others.label_smoothing_over == "others");
  CHECK(parse_spec(to_toml(others), "again.toml").label_smoothing_over == "others");
  check_refused("train_samples = 1000\n", "label_smoothing_over = \"other\"\n", "did you mean 'others'?");
  CHECK(explain_difference(fingerprint(spec), fingerprint(others)) == "label_smoothing_over was all and is others");
  CHECK(explain_difference(fingerprint(others), fingerprint(spec)) == "label_smoothing_over was others and is all");
  CHECK_FALSE(spec.evaluate_test);
  const StudySpec tested = parse_spec(replaced(kSpec, "evaluate_train = true", "evaluate_train = true\nevaluate_test = true"), "my.toml");
  CHECK(tested.evaluate_test);
  CHECK(parse_spec(to_toml(tested), "again.toml").evaluate_test);
  CHECK(explain_difference(fingerprint(spec), fingerprint(tested)) == "evaluate_test was false and is true");
  CHECK(explain_difference(fingerprint(tested), fingerprint(spec)) == "evaluate_test was true and is false");
  REQUIRE(spec.goals.size() == 2);
  CHECK(spec.goals[0].text() == "val_error<0.14");
  CHECK(spec.goals[1].text() == "val_loss<0.4");
  CHECK(spec.seed == 9);
  CHECK(spec.evaluation_ratio == 1.02);
  CHECK(spec.evaluate_train);
  CHECK(spec.max_draws_factor == 5);
  CHECK(spec.diverged_above == 100);
  CHECK_FALSE(spec.censor);
  CHECK(spec.censor_margin == 2);
  CHECK(spec.max_batch_per_worker == 1024);
  CHECK(spec.max_microbatch == 256);
  REQUIRE(spec.batches.size() == 3);
  const BatchSpec &first = spec.batches[0], &last = spec.batches[2];
  CHECK(first.batch_size == 8);
  CHECK(first.num_trials == 20);
  CHECK(first.train_steps == 4000);
  CHECK(last.num_trials == 30);
  CHECK(last.train_steps == 100);
  REQUIRE(first.space.size() == 4);
  CHECK(first.space[0].name == "learning_rate");  // The order of trial_parameters(), not of the file.
  CHECK(first.space[1].name == "momentum");
  CHECK(first.space[1].scale == Hyperparameter::Scale::kReverseLog);
  CHECK(first.space[2].values == std::vector<double>{0, 0.1});
  CHECK(first.space[3].type == Hyperparameter::Type::kInteger);
  CHECK(last.space[0].maximum == 32);
  CHECK(last.space[1].values == std::vector<double>{0.9});
  CHECK(last.space[3].maximum == 100);
}

TEST_CASE("spec: little is needed") {
  const StudySpec spec = parse_spec(R"(
[workload]
data = "noisy-quadratic:dimensions=10"
optimizer = "sgd"
[study]
goals = ["val_loss<0.1"]
batch_sizes = [1, 2]
[batch.1]
steps = 10
trials = 2
[batch.2]
steps = 5
trials = 1
search.learning_rate = 0.5
[batch.1.search.learning_rate]
value = 0.25
)",
                                    "folder/a study.toml");
  CHECK(spec.name == "a-study");
  CHECK(spec.dataset_name == "noisy-quadratic");
  CHECK(spec.batches[0].space[0].values == std::vector<double>{0.25});
  CHECK(spec.batches[1].space[0].values == std::vector<double>{0.5});
  CHECK(spec.censor);
  CHECK(spec.censor_margin == 1);
  CHECK(spec.seed == 1);
}

TEST_CASE("spec: the noisy quadratic has no test split") {
  CHECK_THROWS_WITH_AS(
      parse_spec("[workload]\ndata = \"noisy-quadratic\"\noptimizer = \"sgd\"\n[study]\nevaluate_test = true\n[search]\n", "my.toml"),
      "my.toml:5: [study] evaluate_test: the noisy quadratic has one loss, and no samples to test it on; leave evaluate_test out", Error);
}

TEST_CASE("spec: wrong keys, types and values name file and line") {
  check_refused("seed = 9", "sed = 9", "my.toml:16: [study] unknown key sed (did you mean 'seed'?)");
  check_refused("[machine]", "[machines]", "unknown key machines (did you mean 'machine'?)");
  check_refused("optimizer = \"nesterov\"", "optimizer = \"nesterow\"", "my.toml:7: [workload] optimizer: \"nesterow\" is none of");
  check_refused("optimizer = \"nesterov\"", "", "my.toml:2: [workload] optimizer is missing");
  check_refused("model = \"fc:hidden=64,layers=3\"\n", "", "needs a model");
  check_refused("data = \"fashion-mnist\"", "data = 5", "my.toml:4: [workload] data: expected a text in quotes, found 5");
  check_refused("\"mine\"", "\"../mine\"", "letters, digits, - and _");
  check_refused("context = 32", "context = 0", "context: expected a whole number from 1 to");
  check_refused("context = 32", "context = 32.5", "found 32.5");
  check_refused("val_samples = 500", "val_samples = -1", "from 0 to");
  const StudySpec small = parse_spec(replaced(kSpec, "val_samples = 500", "image_size = 14"), "my.toml");
  CHECK(small.image_size == 14);
  CHECK(parse_spec(to_toml(small), "again.toml").image_size == 14);
  check_refused("data = \"fashion-mnist\"", "image_size = 14\ndata = \"text:x\"", "is for image files");
  check_refused("val_samples = 500", "image_size = 5000", "from 0 to 4096");
  check_refused("synthetic:1x28x28,samples=100", "synthetic:1x28,samples=100", "expected a shape");
  check_refused("synthetic:1x28x28,samples=100", "fashion-mnist", "expected synthetic:SHAPE");
  check_refused("[study]", "[workload]", "my.toml:11: ");
  check_refused("goals = [\"val_error<0.14\", \"val_loss < 0.4\"]", "goals = []", "at least one goal");
  check_refused("val_error<0.14", "val_eror<0.14", "my.toml:12: [study] goal 'val_eror<0.14': unknown metric");
  check_refused("val_error<0.14", "test_error<0.14", "does not measure test_error");
  check_refused("val_loss < 0.4", "val_error<0.140", "my.toml:12: [study] goal val_error<0.14 stands twice; give each goal once");
  check_refused("[8, 64, 8192]", "[8, 8, 8192]", "my.toml:13: [study] batch_sizes: must rise, but 8 comes after 8");
  check_refused("[8, 64, 8192]", "[]", "found 0");
  check_refused("[8, 64, 8192]", "[8, 64, 8192.0]", "whole numbers");
  check_refused("[8, 64, 8192]", "[0, 64, 8192]", "from 1 to");
  check_refused("[8, 64, 8192]", "64", "a list of whole numbers from 1 to 1000000000, found 64");
  check_refused("[4000, 800, 100]", "[4000, 800]", "my.toml:15: [study] steps: 2 numbers for 3 batch sizes");
  check_refused("trials = 20", "trials = 0", "from 1 to");
  check_refused("trials = 20\n", "", "my.toml:11: [study] trials is missing, and [batch.8] has none");
  check_refused("evaluation_ratio = 1.02", "evaluation_ratio = 0.9", "from 1 to 10");
  check_refused("evaluation_ratio = 1.02", "evaluation_ratio = nan", "found nan");
  check_refused("diverged_above = 100", "diverged_above = inf", "found inf");
  check_refused("diverged_above = 100", "diverged_above = -1", "diverged_above");
  check_refused("seed = 9", "seed = 99999999999999999999", "my.toml:16: ");
  check_refused("seed = 9", "seed = -9", "from 0 to");
  check_refused("evaluate_train = true", "evaluate_test = 1", "true or false, found 1");
  check_refused("evaluate_train = true", "evaluate_train = 1", "true or false, found 1");
  check_refused("enabled = false", "enabled = \"no\"", "true or false, found \"no\"");
  check_refused("margin = 2", "margin = 0.5", "from 1 to");
  check_refused("unknown = [\"Who knows?\"]", "unknown = [1]", "my.toml:1: unknown: expected a list of texts");
}

TEST_CASE("spec: wrong spaces name file and line") {
  const std::string rate = "learning_rate = { scale = \"log\", min = 1e-3, max = 3.2 }";
  check_refused(rate, "learning_rates = 1",
                "my.toml:23: [search] unknown hyperparameter \"learning_rates\" (did you mean 'learning_rate'?)");
  check_refused(rate, "learning_rate = { min = 1e-3, max = 3.2 }", "my.toml:23: [search.learning_rate] scale is missing");
  check_refused(rate, "learning_rate = { scale = \"log\", min = 1e-3 }", "[search.learning_rate] max is missing");
  check_refused(rate, "learning_rate = { scale = \"logg\", min = 1e-3, max = 1 }",
                "\"logg\" is none of: linear log reverse-log (did you mean 'log'?)");
  check_refused(rate, "learning_rate = { scale = \"log\", min = 0, max = 3.2 }", "my.toml:23: [search] learning_rate: a log scale");
  check_refused(rate, "learning_rate = { scale = \"log\", min = 5, max = 3.2 }", "min 5 is above max 3.2");
  check_refused(rate, "learning_rate = { scale = \"log\", min = 1, max = inf }", "expected a number from -1e+300 to 1e+300, found inf");
  check_refused(rate, "learning_rate = { scale = \"linear\", min = -1, max = 1 }", "expected more than 0");
  check_refused(rate, "learning_rate = { values = [] }", "no values");
  check_refused(rate, "learning_rate = { values = [1, nan] }", "a list of finite numbers, found nan");
  check_refused(rate, "learning_rate = { values = [1], min = 0.5 }", "min: does not go with given values");
  check_refused(rate, "learning_rate = { value = 1, values = [2] }", "expected either value or values");
  check_refused(rate, "learning_rate = { value = 1, type = \"double\" }", "given values make it discrete");
  check_refused(rate, "learning_rate = { type = \"discrete\" }", "expected either value or values");
  check_refused(rate, "learning_rate = \"fast\"", "learning_rate: expected a number or a table, [search.learning_rate], found \"fast\"");
  for (const auto& [value, found] : {std::pair("true", "true"), std::pair("\"0.5\"", "\"0.5\""), std::pair("[0.1]", "a list")})
    check_refused(rate, rate + "\naverage_decay = " + value,
                  std::string("average_decay: expected a number or a table, [search.average_decay], found ") + found);
  check_refused(rate, "learning_rate = nan", "found nan");
  check_refused(rate, "", "my.toml:21: [search] at batch size 8: no learning_rate");
  check_refused("min = 0, max = 0.999", "min = 0, max = 1", "reverse-log scale cannot reach max 1");
  check_refused("optimizer = \"nesterov\"", "optimizer = \"sgd\"", "my.toml:22: [search] momentum: the optimizer \"sgd\" has none");
  check_refused("decay_steps = { min = 10", "decay_steps = { min = 10.5", "an integer cannot end at 10.5");
  check_refused("decay_steps = {", "decay_steps = { type = \"double\", scale = \"linear\",", "its type is integer");
  check_refused("decay_steps = {", "decay_fraction = 0.5\ndecay_steps = {", "give one of them");
  check_refused("[batch.8192]", "[batch.8193]", "my.toml:26: [batch] 8193: is none of batch_sizes");
  check_refused("[batch.8192]", "[batch.08192]", "is none of batch_sizes");
  check_refused("[batch.8192]\ntrials", "[batch.8192]\nsteeps", "my.toml:27: [batch.8192] unknown key steeps (did you mean 'steps'?)");
  check_refused("momentum = 0.9", "momentum = 1.5", "my.toml:29: [batch.8192.search] momentum: 1.5 is out of range");
}

TEST_CASE("spec: a trial that would be evaluated without end is refused") {
  const std::string fine = replaced(kSpec, "evaluation_ratio = 1.02", "evaluation_ratio = 1");
  CHECK_NOTHROW(parse_spec(fine, "my.toml"));
  try {
    parse_spec(replaced(fine, "4000", "900000000000"), "my.toml");
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).starts_with("my.toml:17: [study] evaluation_ratio 1 over 900000000000 steps"));
  }
}

/// Whatever the text, the answer is a spec that passes its checks, or one line that names the file.
void parse_anything(const std::string& text) {
  try {
    check_spec(parse_spec(text, "my.toml"));
  } catch (const Error& error) {
    const std::string what = error.what();
    REQUIRE(error.code() == ErrorCode::kBadInput);
    REQUIRE_MESSAGE(what.starts_with("my.toml:"), what);
    REQUIRE_MESSAGE(what.find('\n') == std::string::npos, what);
    for (const unsigned char c : what) REQUIRE_MESSAGE((c >= 0x20 && c < 0x7f), what);
  }
}

TEST_CASE("spec: truncated and damaged files end in one line") {
  for (size_t length = 0; length < kSpec.size(); length += 3) parse_anything(kSpec.substr(0, length));
  for (uint64_t seed = 1; seed <= 3000; ++seed) parse_anything(mutated(kSpec, seed));
  parse_anything(std::string(100'000, '['));
  parse_anything("a" + std::string(100'000, '.') + "b = 1");
  parse_anything(std::string("workload = \"\0\"", 15));
  parse_anything("[workload]\n\"a\\nb\" = 1");
  CHECK_THROWS_AS(parse_spec(std::string(2 << 20, ' '), "my.toml"), Error);
}

TEST_CASE("spec: files that are none") {
  const TemporaryFolder folder;
  CHECK_THROWS_AS(read_spec(folder / "missing.toml"), Error);
  CHECK_THROWS_AS(read_spec(folder.path()), Error);
  write_file_atomically(folder / "my_study.toml", replaced(kSpec, "name = \"mine\"\n", ""));
  CHECK(read_spec(folder / "my_study.toml").name == "my_study");
}

}  // namespace
}  // namespace cohort::study
