#include "cohort/plan/ladder.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "cohort/base/error.h"
#include "cohort/base/text/json.h"
#include "cohort/plan/profile/analytic_profile.h"

namespace cohort {
namespace {

Cluster cluster_of(int devices) {
  Cluster cluster;
  cluster.name = "cores";
  cluster.devices = {
      {.name = "core", .memory_bytes = INT64_C(1) << 34, .rates = {{"bf16", 2e11}, {"fp32", 1e11}}, .memory_bytes_per_second = 1e10}};
  for (Link& link : cluster.inside.by_exchange) link = {1e-5, 0, 2e9};
  cluster.across = cluster.inside;
  cluster.hosts = {{1, devices, 0}};
  return cluster;
}

Config config_of(const std::string& model, int64_t batch) {
  Config config;
  config.model = model;
  config.data = "synthetic:text";
  find_setting("context")->set(config, "64");
  config.global_batch = batch;
  return config;
}

SearchRequest request_of(const Config& config, int devices, int64_t limit) {
  SearchRequest request;
  request.problem.cluster = cluster_of(devices);
  request.problem.profile = analytic_profile(config.model, request.problem.cluster, {.data = config.data, .context = config.context});
  request.problem.global_batch = config.global_batch;
  request.problem.optimizer_arrays = 2;
  request.problem.memory_limit_bytes = limit;
  return request;
}

const FallbackOption* find(const FallbackOptions& ladder, const std::string& name) {
  const auto found = std::find_if(ladder.rungs.begin(), ladder.rungs.end(), [&](const FallbackOption& rung) { return rung.name == name; });
  return found == ladder.rungs.end() ? nullptr : &*found;
}

const std::string kModel = "transformer:layers=4,width=128,heads=4";

TEST_CASE("ladder: as it is is plain data parallelism, and where that fits whatever is tried fits") {
  const Config config = config_of(kModel, 32);
  const SearchRequest request = request_of(config, 2, 0);
  const FallbackOptions ladder = find_fallback_options(request, ladder_sources(config, request), nullptr);
  REQUIRE(!ladder.rungs.empty());
  const FallbackOption& base = ladder.rungs.front();
  CHECK(base.name == "as it is");
  CHECK(base.options.empty());
  CHECK(base.plan->candidate.layout.dp == 2);
  for (const FallbackOption& rung : ladder.rungs) CHECK(rung.fits);
  CHECK(find(ladder, "smaller batch") == nullptr);  // All of it fits.
  CHECK(find(ladder, "fewer layers") == nullptr);   // The last resort.
  CHECK_FALSE(ladder.is_stopped);
}

TEST_CASE("ladder: each rung says what is forecast, changes what its name says, and fits where it claims to") {
  const Config config = config_of(kModel, 32);
  SearchRequest request = request_of(config, 2, 0);
  const int64_t plain = find_fallback_options(request, {}, nullptr).rungs.front().plan->forecast.peak_memory_bytes();
  request.problem.memory_limit_bytes = plain / 2;
  const FallbackOptions ladder = find_fallback_options(request, ladder_sources(config, request), nullptr);
  CHECK_FALSE(ladder.rungs.front().fits);
  CHECK(ladder.rungs.front().plan->forecast.peak_memory_bytes() == plain);
  CHECK(ladder.constraint.find("memory binds") != std::string::npos);
  CHECK(ladder.constraint.find("activations") != std::string::npos);
  for (const FallbackOption& rung : ladder.rungs) {
    CAPTURE(rung.name);
    CHECK(rung.fits == (rung.plan->forecast.peak_memory_bytes() <= plain / 2));
  }
  const FallbackOption* pieces = find(ladder, "micro-batches, accumulated");
  REQUIRE(pieces);
  CHECK(pieces->fits);
  CHECK(pieces->options.starts_with("--accumulate "));
  CHECK(find(ladder, "ZeRO 3")->plan->candidate.layout.zero == 3);
  CHECK(find(ladder, "bf16")->plan->candidate.layout.precision == "bf16");
  CHECK(find(ladder, "bf16")->options.find("--precision bf16") != std::string::npos);
  CHECK(find(ladder, "pipeline")->plan->candidate.layout.pp == 2);
  CHECK(find(ladder, "divided layers")->plan->candidate.layout.tp == 2);
  const FallbackOption* batch = find(ladder, "smaller batch");
  REQUIRE(batch);
  CHECK(batch->fits);
  CHECK(batch->plan->global_batch < 32);
  CHECK_FALSE(batch->is_same_training);
  const FallbackOption* context = find(ladder, "shorter context");
  REQUIRE(context);
  CHECK(context->fits);
  CHECK(context->options.starts_with("--context 32"));
  REQUIRE(ladder.fastest());
  for (const FallbackOption& rung : ladder.rungs)
    if (rung.fits && rung.is_same_training) CHECK(ladder.fastest()->plan->forecast.step_seconds <= rung.plan->forecast.step_seconds);
  // --context was named: both ways out of a long one are said.
  const auto both =
      std::find_if(ladder.notes.begin(), ladder.notes.end(), [](const std::string& note) { return note.starts_with("--context 64: "); });
  REQUIRE(both != ladder.notes.end());
  CHECK(both->find("a batch of") != std::string::npos);
  CHECK(both->find("workers for the batch of 32") != std::string::npos);
}

TEST_CASE("ladder: where nothing on these workers fits, more of them and smaller models do") {
  const Config config = config_of("transformer:layers=8,width=256,heads=4", 8);
  SearchRequest request = request_of(config, 1, 0);
  request.objective = Objective::kMemory;
  const int64_t least = search_plan(request, nullptr, nullptr).best.forecast.peak_memory_bytes();
  request.objective = Objective::kStepTime;
  request.problem.memory_limit_bytes = least / 3;
  const FallbackOptions ladder = find_fallback_options(request, ladder_sources(config, request), nullptr);
  CHECK_FALSE(ladder.fastest());
  const FallbackOption* workers = find(ladder, "more workers");
  REQUIRE(workers);
  CHECK(workers->fits);
  CHECK(workers->plan->candidate.layout.num_ranks() > 1);
  CHECK(workers->options.find("--workers ") != std::string::npos);
  const FallbackOption* model = find(ladder, "fewer layers");
  if (model) CHECK(model->options.starts_with("--model "));
  CHECK_THROWS_AS(search_plan(request, nullptr, nullptr), Error);
}

TEST_CASE("ladder: a layout that was typed is the base, keys that were typed stay, and the time to a goal is said") {
  const Config config = config_of(kModel, 32);
  SearchRequest request = request_of(config, 2, 0);
  request.fixed = {{"pp", "2"}, {"microbatches", "2"}, {"precision", "fp32"}};
  const FallbackOptions typed = find_fallback_options(request, {}, nullptr);
  CHECK(typed.rungs.front().plan->candidate.layout.pp == 2);
  CHECK(typed.rungs.front().plan->candidate.layout.microbatches == 2);
  for (const FallbackOption& rung : typed.rungs)
    if (rung.name != "bf16") CHECK(rung.plan->candidate.layout.precision == "fp32");
  request.fixed.clear();
  request.objective = Objective::kTimeToGoal;
  request.steps_curve = {{16, 1000, 900, 1100}, {32, 600, 500, 700}};
  const FallbackOptions goal = find_fallback_options(request, {}, nullptr);
  for (const FallbackOption& rung : goal.rungs) {
    CAPTURE(rung.name);
    REQUIRE(rung.seconds_to_goal);
    const double steps = rung.plan->global_batch == 16 ? 1000 : 600;
    CHECK(*rung.seconds_to_goal == doctest::Approx(steps * rung.plan->forecast.step_seconds));
  }
}

TEST_CASE("ladder: a stop leaves rungs out and says so; text and JSON have every rung") {
  const Config config = config_of(kModel, 32);
  const SearchRequest request = request_of(config, 2, 0);
  std::atomic<bool> stop{false};
  int looks = 0;
  const FallbackOptions cut = find_fallback_options(request, {}, &stop, [&] { stop = ++looks > 5; });
  CHECK(cut.is_stopped);
  CHECK(cut.rungs.size() < find_fallback_options(request, {}, nullptr).rungs.size());
  CHECK(fallback_text(cut).find("Stopped") != std::string::npos);
  const Json json = to_json(cut);
  CHECK(json["event"] == "ladder");
  CHECK(json["complete"] == false);
  CHECK(json["rungs"].size() == cut.rungs.size());
  for (const FallbackOption& rung : cut.rungs) CHECK(fallback_text(cut).find(rung.name) != std::string::npos);
}

TEST_CASE("ladder: smaller pictures of files, and nothing of models whose shapes are not known") {
  Config config;
  config.model = "cnn", config.data = "cifar10", config.global_batch = 64;
  SearchRequest request;
  request.problem.cluster = cluster_of(2);
  request.problem.profile = analytic_profile("cnn", request.problem.cluster, {.data = "cifar10"});
  const FallbackSources sources = ladder_sources(config, request);
  REQUIRE(!sources.variants.empty());
  CHECK(sources.variants.front().name == "smaller pictures");
  CHECK(sources.variants.front().variants.front().options == "--image-size 24");
  const ModelProfile smaller = sources.variants.front().variants.front().profile();
  CHECK(smaller.num_trained() < request.problem.profile.num_trained());
  config.model = "mine";
  const FallbackSources none = ladder_sources(config, request);
  CHECK(none.variants.empty());
  CHECK(none.notes.size() == 1);
}

}  // namespace
}  // namespace cohort
