#include "cohort/tune/auto_layout.h"

#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "cohort/base/error.h"
#include "tests/support/text.h"

namespace cohort {
namespace {

/// "" where it is let pass.
std::string said(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

Config fc() {
  Config config;
  config.model = "fc:hidden=8", config.data = "synthetic:1x8x8,classes=4,samples=96", config.workers = 2;
  return config;
}

TEST_CASE("auto: an option that acts in no layout that may be chosen is refused, one that acts in some is not") {
  const auto refused = [](const std::function<void(Config&)>& change, int num_ranks, bool may_be_fewer) {
    Config config = fc();
    change(config);
    return said([&] { check_any_layout(config, num_ranks, may_be_fewer, false); });
  };
  const auto set = [](const char* name, const char* value) { return [=](Config& config) { find_setting(name)->set(config, value); }; };
  CHECK(refused([](Config&) {}, 2, true).empty());
  CHECK(contains(refused(set("outer-lr", "0.5"), 2, true), "--outer-lr 0.5 would do nothing here"));
  CHECK(contains(refused(set("backend", "nccl"), 2, true), "--backend nccl with --device cpu"));
  CHECK(contains(refused(set("weights", "private"), 1, true), "--weights private would do nothing here"));
  CHECK(refused(set("weights", "private"), 2, true).empty());      // With data parallelism.
  CHECK(refused(set("bucket-bytes", "100000"), 2, true).empty());  // With ZeRO alone.
  CHECK(refused(set("global-batch", "1"), 2, true).empty());       // In one process, or divided.
  CHECK(contains(refused(set("inject", "slow:5:2"), 2, true), "there is no rank 5"));
}

TEST_CASE("auto: what the model cannot do in any layout is refused before it is measured") {
  const auto refused = [](const std::function<void(Config&)>& change, int num_ranks) {
    Config config = fc();
    change(config);
    const Job job = resolve(config, num_ranks);
    return said([&] { check_model_for_auto(job, open_data(config), num_ranks, /*forks=*/false); });
  };
  CHECK(refused([](Config&) {}, 2).empty());
  CHECK(contains(refused([](Config& config) { config.sync_batch_norm = true; }, 2), "the model fc:hidden=8 has no batch norm layers"));
  CHECK(refused([](Config& config) { config.model = "resnet50:width=4,blocks=1-1-1-1,norm=batch", config.sync_batch_norm = true; }, 2)
            .empty());
  // fc:hidden=8: 64 x 8 + 8 + 8 x 4 + 4 = 556 weights of 4 bytes, and as many gradients.
  CHECK(refused([](Config& config) { config.model = "fc:hidden=8,layers=1", config.memory_limit = 2300; }, 2).empty());
  CHECK(contains(refused([](Config& config) { config.model = "fc:hidden=8,layers=1", config.memory_limit = 2200; }, 2),
                 "no layout of at most 2 devices fits into 2200 bytes a rank: weights and gradients of fc:hidden=8,layers=1 alone are 4448 "
                 "bytes, 2224"));
}

}  // namespace

}  // namespace cohort
