#include "cohort/plan/profile/analytic_profile.h"

#include <doctest/doctest.h>

#include <chrono>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/plan/profile/shape_graph.h"

namespace cohort {
namespace {

/// A device on which an operation takes a second, and a byte nothing; products of any size have the full rate.
Cluster simple() {
  Cluster cluster{.name = "simple"};
  cluster.devices = {{.name = "d", .memory_bytes = 1, .rates = {{"fp32", 1}, {"bf16", 2}}, .memory_bytes_per_second = 1e30}};
  cluster.hosts = {{1, 8, 0}};
  return cluster;
}

int layer_named(const ModelProfile& profile, const std::string& name) {
  for (size_t i = 0; i < profile.layers.size(); ++i)
    if (profile.layers[i].name == name) return static_cast<int>(i);
  FAIL(name);
  return 0;
}

TEST_CASE("analytic: a fully connected network by hand") {
  const ModelProfile profile = analytic_profile("fc:hidden=100,layers=2", simple(), {.data = "synthetic:1x8x8,classes=4"});
  REQUIRE(profile.layers.size() == 6);
  CHECK(profile.num_trained() == 64 * 100 + 100 + 100 * 100 + 100 + 100 * 4 + 4);
  const Profile at = profile_at(profile, {"d", "fp32", 1, 8});
  const int first = layer_named(profile, "hidden1"), relu = layer_named(profile, "relu1"), output = layer_named(profile, "output");
  CHECK(at.layers[static_cast<size_t>(first)].forward_seconds == doctest::Approx(2.0 * 8 * 64 * 100));
  CHECK(at.layers[static_cast<size_t>(first)].backward_input_seconds == doctest::Approx(2.0 * 8 * 64 * 100));
  CHECK(at.layers[static_cast<size_t>(first)].backward_weight_seconds == doctest::Approx(2.0 * 8 * 64 * 100));
  CHECK(at.layers[static_cast<size_t>(first)].output_bytes == 8 * 100 * 4);
  CHECK(at.layers[static_cast<size_t>(first)].stash_bytes == 0);  // ReLU keeps its own output.
  CHECK(at.layers[static_cast<size_t>(relu)].stash_bytes == 8 * 100 * 4);
  CHECK(at.layers[static_cast<size_t>(output)].stash_bytes == 0);
  CHECK(profile_at(profile, {"d", "bf16", 1, 8}).layers[static_cast<size_t>(first)].forward_seconds == doctest::Approx(8.0 * 64 * 100));
  // Columns, then rows: a sum forward and one backward for the pair.
  CHECK(profile.layers[static_cast<size_t>(first)].num_tensor_exchanges == 0);
  CHECK(profile.layers[static_cast<size_t>(layer_named(profile, "hidden2"))].num_tensor_exchanges == 1);
  CHECK(profile_at(profile, {"d", "fp32", 4, 8}).layers[static_cast<size_t>(first)].forward_seconds == doctest::Approx(2.0 * 8 * 64 * 25));
}

TEST_CASE("analytic: a Transformer block does 24 R w^2 + 4 R t w operations and has 12 w^2 weights") {
  const double w = 512, t = 128, rows = 4 * t;
  const ModelProfile profile = analytic_profile("transformer:layers=3,width=512,heads=8,context=128", simple());
  const auto block = static_cast<size_t>(layer_named(profile, "block2"));
  CHECK(profile.layers[block].num_trained == doctest::Approx(12 * w * w).epsilon(0.01));
  const LayerProfile cost = profile_at(profile, {"d", "fp32", 1, 4}).layers[block];
  CHECK(cost.forward_seconds == doctest::Approx(24 * rows * w * w + 4 * rows * t * w));
  CHECK(cost.backward_input_seconds + cost.backward_weight_seconds == doctest::Approx(2 * cost.forward_seconds));
  CHECK(cost.output_bytes == 4 * 128 * 512 * 4);
  CHECK(profile.layers[block].num_tensor_exchanges == 2);
}

TEST_CASE("analytic: 175 billion parameters in milliseconds, without an allocation") {
  const auto start = std::chrono::steady_clock::now();
  const ModelProfile profile =
      analytic_profile("transformer:layers=96,width=12288,heads=96,context=2048,vocabulary=50257,tied=1", simple());
  CHECK(static_cast<double>(profile.num_trained()) == doctest::Approx(175e9).epsilon(0.01));
  CHECK(profile.tied.size() == 1);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(2));
}

TEST_CASE("analytic: every family has a profile that grows with the micro-batch and shrinks with faster devices") {
  Cluster slow = simple(), fast;
  slow.devices[0].rates = {{"fp32", 1e9}, {"bf16", 2e9}};
  fast = slow;
  fast.devices[0].rates[0].flops_per_second = 3e9;
  for (const std::string& model : analytic_models()) {
    CAPTURE(model);
    const ModelProfile profile = analytic_profile(model, slow);
    CHECK(model_profile_from_json(to_json(profile), "it").layers.size() == profile.layers.size());
    for (size_t point = 1; point < profile.points.size(); ++point) {
      const ProfilePoint &before = profile.points[point - 1], &now = profile.points[point];
      if (before.precision != now.precision || before.tp != now.tp) continue;
      for (size_t layer = 0; layer < now.layers.size(); ++layer)
        CHECK(now.layers[layer].forward_seconds >= before.layers[layer].forward_seconds);
    }
    const ModelProfile faster = analytic_profile(model, fast);
    for (size_t layer = 0; layer < profile.layers.size(); ++layer) {
      const ProfileKey key{"d", "fp32", 1, 16};
      CHECK(profile_at(faster, key).layers[layer].forward_seconds <= profile_at(profile, key).layers[layer].forward_seconds);
    }
  }
}

TEST_CASE("analytic: what it does not know is named") {
  const auto of = [](const std::string& model, const std::string& data = "") {
    try {
      analytic_profile(model, simple(), {.data = data});
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kBadInput);
      return std::string(error.what());
    }
    return std::string("taken");
  };
  CHECK(of("transfomer").find("did you mean 'transformer'") != std::string::npos);
  CHECK(of("fc:width=3").find("has no option 'width'") != std::string::npos);
  CHECK(of("fc", "text:x").find("reads pictures") != std::string::npos);
  CHECK(of("gpt", "mnist:x").find("reads text") != std::string::npos);
  CHECK(of("fc", "folder:x").find("its shape is not in its name") != std::string::npos);
  CHECK(of("fc", "synthetic:1x0x3").find("expected synthetic:CxHxW") != std::string::npos);
  CHECK(of("transformer:heads=3").find("heads must divide") != std::string::npos);
  CHECK_THROWS_WITH_AS(analytic_profile("fc", simple(), {.context = 9}), doctest::Contains("is for text"), Error);
  CHECK(of("transformer:context=0").find("model option context=0") != std::string::npos);
}

}  // namespace
}  // namespace cohort
