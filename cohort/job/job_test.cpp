#include "cohort/job/job.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "tests/support/errors.h"

namespace cohort {
namespace {

std::string refusal(const Config& config, int workers) {
  return error_or_none([&] { resolve(config, workers); });
}

TEST_CASE("a job is a configuration whose words have been read") {
  Config config;
  config.model = "lstm", config.optimizer = "adamw", config.precision = "bf16", config.layout = "dp=2,zero=2", config.goal = "val_loss<0.5";
  config.schedule_lr = "cosine", config.warmup_steps = 2, config.inject = "slow:1:3";
  const Job job = resolve(config, 2);
  CHECK(job.layout.zero == 2);
  CHECK(job.num_ranks() == 2);
  CHECK(job.precision == Precision::kBf16);
  CHECK(job.rule.kind == UpdateRule::Kind::kAdamW);
  CHECK(job.rule.weight_decay == 0.01);
  CHECK(job.learning_rate.at(1, 100) == job.learning_rate.rate);
  CHECK(job.learning_rate.rate == 0.003);
  CHECK(job.goal->metric == "val_loss");
  CHECK(job.faults.size() == 1);
  CHECK(job.config.lr == Config::kAuto);  // As it was given.
  CHECK(resolve(config, Layout()).num_ranks() == 1);
  CHECK_FALSE(resolve(Config(), 1).goal);
}

TEST_CASE("what a layout says of accumulate, precision and shares counts, unless the configuration says otherwise") {
  Config config;
  config.layout = "dp=2,accumulate=3,precision=bf16,shares=3:1";
  const Job job = resolve(config, 2);
  CHECK(job.config.accumulate == 3);
  CHECK(job.precision == Precision::kBf16);
  CHECK(job.shares.weights == std::vector<double>{3, 1});
  CHECK(refusal(job.config, 2) == "");  // Both say the same.
  config.accumulate = 2;
  CHECK(refusal(config, 2).find("accumulate 2 and --layout accumulate=3 contradict each other") != std::string::npos);
  config.accumulate = 1, config.given.insert("accumulate");
  CHECK(refusal(config, 2).find("contradict") != std::string::npos);
}

TEST_CASE("a layout's file is read once") {
  const TemporaryFolder folder;
  Config config;
  config.layout = folder / "l.json";
  std::ofstream(config.layout) << R"({"stages": [{"layers": ["a"]}, {"layers": ["b"]}]})";
  const Job job = resolve(config, 2);
  std::filesystem::remove(config.layout);
  CHECK(resolve(job.config, 2).layout.stages == job.layout.stages);
}

TEST_CASE("a word that means nothing is refused") {
  const auto with = [](std::string Config::* member, const char* word) {
    Config config;
    config.*member = word;
    return refusal(config, 2);
  };
  CHECK(with(&Config::precision, "fp8") == "precision 'fp8' is not known; use fp32, bf16 or fp16");
  CHECK(with(&Config::optimizer, "lion") == "--optimizer: no optimizer 'lion'; there are: sgd momentum nesterov adam adamw");
  CHECK(with(&Config::schedule_lr, "step") == "--schedule-lr: no schedule 'step'; there are: constant linear cosine");
  CHECK(with(&Config::layout, "dq=2").find("dq") != std::string::npos);
  CHECK(with(&Config::goal, "val_error").find("--goal 'val_error'") == 0);
  CHECK(with(&Config::inject, "burn:0:1").find("--inject burn:0:1") == 0);
}

}  // namespace
}  // namespace cohort
