// ZeRO where parameters lie on a device: one that is none (tests/support/device.h) in a GPU's place, with a backend that exchanges on it
// and through host memory.
#include <doctest/doctest.h>
#include <torch/torch.h>

#include <algorithm>
#include <set>

#include "cohort/base/fail.h"
#include "cohort/parallel/common/flat_piece.h"
#include "cohort/parallel/make_strategy.h"
#include "cohort/parallel/strategy/data_parallel.h"
#include "cohort/parallel/watch/operator_watch.h"
#include "cohort/parallel/zero/zero_units.h"
#include "tests/support/device_ranks.h"
#include "tests/support/zero_checkpoint.h"
#include "tests/support/zero_model.h"

namespace cohort {
namespace {

using namespace zero_test;

constexpr Way kDeviceWays[] = {Way::kThroughHost, Way::kDevice};

std::string text_of_run(const Scenario& s, Way way) {
  return concat(text_of(s), way == Way::kDevice ? ", on the device" : ", through the host");
}

void run_well(int num_ranks, Way way, const std::string& what, const std::function<void(DeviceRank&)>& body) {
  for (const std::string& error : run_device_ranks(num_ranks, way, body)) CHECK_MESSAGE(error == "", what);
}

/// Everything that stays is where the model is.
void require_on_device(ZeroDataParallel& zero, const nn::Module& model, c10::Device device) {
  for (const NamedTensor& parameter : distinct_parameters(model)) require(parameter.tensor.device() == device, parameter.name);
  for (const FlatPiece& piece : zero.saved_pieces())
    require(piece.values.device() == (piece.name.ends_with("/step") ? c10::Device(at::kCPU) : device), piece.name);
}

/// Like check_close(), and safe in threads.
void require_close(const Weights& found, const Weights& expected) {
  for (const auto& [name, value] : expected)
    require(torch::allclose(found.at(name), value, 1e-6, value.scalar_type() == torch::kFloat ? 5e-6 : 1e-6), name);
}

/// Rank 0's weights after all steps; each rank's are compared with `expected`.
Weights train_on_device(const Scenario& s, Way way, const Weights& expected) {
  Weights first;
  run_well(s.num_ranks, way, text_of_run(s, way), [&](DeviceRank& one) {
    Awkward model(one.group.rank() == 0 ? 5 : 77 + static_cast<uint64_t>(one.group.rank()), one.device);
    ZeroDataParallel zero(*model, one.group, options_of(s));
    train(zero, model, one.group, s, 1, kSteps);
    require_on_device(zero, *model, one.device);
    // A reduce-scatter a unit and step, and as many gathers or more: data of the device never leave it.
    const int fewest = kSteps * 2 * zero.statistics().num_buckets;
    require(way == Way::kDevice ? one.num_device_calls() >= fewest : one.num_device_calls() == 0, "calls of the device's backend");
    zero.gather_weights();
    const Weights found = weights_of(*model);
    require_close(found, expected);
    if (one.group.rank() == 0) first = found;
  });
  return first;
}

TEST_CASE("each stage trains an awkward model on devices as one process does in host memory, clipped, accumulated and uneven") {
  use_test_device();
  for (const Scenario& common : {Scenario{.num_ranks = 2}, Scenario{.num_ranks = 3, .kind = UpdateRule::Kind::kAdamW, .clip_norm = 0.5},
                                 Scenario{.num_ranks = 2, .kind = UpdateRule::Kind::kAdamW, .num_micro_steps = 3, .clip_norm = 0.5},
                                 Scenario{.num_ranks = 4, .num_micro_steps = 2, .clip_norm = 0.5, .uneven = true, .bucket_bytes = 1},
                                 Scenario{.num_ranks = 1, .clip_norm = 0.5}}) {
    const Weights expected = reference(common);
    for (const Way way : kDeviceWays) {
      if (common.num_ranks == 1 && way == Way::kDevice) continue;
      for (const int stage : {1, 2, 3}) {
        Scenario s = common;
        s.stage = stage;
        train_on_device(s, way, expected);
      }
    }
  }
}

TEST_CASE("stages agree bitwise on devices, whichever way data travel") {
  use_test_device();
  const Scenario common{.num_ranks = 3, .clip_norm = 0.5};
  const Weights expected = reference(common);
  Weights first;
  for (const Way way : kDeviceWays)
    for (const int stage : {1, 2, 3}) {
      Scenario s = common;
      s.stage = stage;
      const Weights found = train_on_device(s, way, expected);
      if (first.empty()) first = found;
      for (const auto& [name, value] : first) CHECK_MESSAGE(torch::equal(found.at(name), value), text_of_run(s, way), ": ", name);
    }
}

TEST_CASE("what stage 3 saved on devices stage 1 goes on with in host memory, and the other way round") {
  use_test_device();
  struct Side {
    int stage, num_ranks;
    Way way;
  };
  for (const auto& [from, to] :
       {std::pair{Side{3, 2, Way::kDevice}, Side{1, 3, Way::kHost}}, std::pair{Side{1, 3, Way::kHost}, Side{3, 2, Way::kThroughHost}},
        std::pair{Side{2, 2, Way::kThroughHost}, Side{3, 3, Way::kDevice}}}) {
    const auto scenario = [](const Side& side) {
      return Scenario{.stage = side.stage, .num_ranks = side.num_ranks, .kind = UpdateRule::Kind::kAdamW};
    };
    Saved saved;
    run_well(from.num_ranks, from.way, "saving", [&, from = from](DeviceRank& one) {
      Awkward model(5, one.device);
      ZeroDataParallel zero(*model, one.group, options_of(scenario(from)));
      train(zero, model, one.group, scenario(from), 1, 2);
      saved.save(zero.saved_pieces());
    });
    for (const auto& [name, counts] : saved.writes) CHECK_MESSAGE(counts == std::vector<int>(counts.size(), 1), name);
    // The rest of the reference's steps; step 3 depends on the division of rows, so the fourth alone.
    const auto finish = [&](const Side& side) {
      Weights found;
      run_well(side.num_ranks, side.way, "going on", [&](DeviceRank& one) {
        Awkward model(99, one.device);
        ZeroDataParallel zero(*model, one.group, options_of(scenario(side)));
        saved.load(zero.loaded_pieces());
        zero.loaded();
        train(zero, model, one.group, scenario(side), 4, 4);
        zero.gather_weights();
        if (one.group.rank() == 0) found = weights_of(*model);
      });
      return found;
    };
    const Weights expected = finish({1, 1, Way::kHost}), found = finish(to);
    REQUIRE(found.size() == expected.size());
    require_close(found, expected);
  }
}

TEST_CASE("on a device, too, stage 3 holds slices and few units, and the forecast is that of host memory") {
  use_test_device();
  const Scenario s{.stage = 3, .num_ranks = 2, .kind = UpdateRule::Kind::kAdamW};
  const auto forecast_of = [&](Way way) {
    MemoryForecast forecast;
    run_well(s.num_ranks, way, "forecast", [&](DeviceRank& one) {
      Awkward model(5, one.device);
      ZeroDataParallel zero(*model, one.group, options_of(s));
      for (const NamedTensor& parameter : distinct_parameters(*model))
        require(parameter.tensor.numel() == 0 || !has_memory(parameter.tensor), "memory after construction: " + parameter.name);
      train(zero, model, one.group, s, 1, kSteps);
      require(zero.unit_bytes() == 0, "whole units after a step");
      const MemoryForecast mine = zero.memory_forecast();
      require(zero.peak_bytes() <= mine.weight_bytes + mine.gradient_bytes + mine.optimizer_bytes, "more than the forecast was held");
      if (one.group.rank() == 0) forecast = mine;
    });
    return forecast;
  };
  const MemoryForecast expected = forecast_of(Way::kHost);
  CHECK(expected.weight_bytes > 0);
  for (const Way way : kDeviceWays) {
    const MemoryForecast found = forecast_of(way);
    CHECK(found.weight_bytes == expected.weight_bytes);
    CHECK(found.gradient_bytes == expected.gradient_bytes);
    CHECK(found.optimizer_bytes == expected.optimizer_bytes);
  }
}

TEST_CASE("a clipped step waits for one number of the device, an unclipped one for none") {
  use_test_device();
  for (const int stage : {1, 2, 3})
    run_well(2, Way::kDevice, concat("stage ", stage), [&](DeviceRank& one) {
      Awkward model(5, one.device);
      ZeroDataParallel zero(*model, one.group, {.stage = stage, .bucket_bytes = 200});
      for (const double clip_norm : {0.0, 0.5}) {
        zero.zero_grad();
        loss_of(model, samples(1).to(one.device), true).backward();
        const int before = num_scalars_read();
        zero.step({.learning_rate = 0.01, .clip_norm = clip_norm});
        require(num_scalars_read() - before == (clip_norm > 0 ? 1 : 0), concat("numbers read with clip_norm ", clip_norm));
      }
    });
}

TEST_CASE("an infinite gradient on one device skips the update on all") {
  use_test_device();
  for (const int stage : {1, 3})
    run_well(2, Way::kThroughHost, concat("stage ", stage), [&](DeviceRank& one) {
      Awkward model(5, one.device);
      ZeroDataParallel zero(*model, one.group, {.stage = stage, .bucket_bytes = 200});
      const float factor = one.group.rank() == 1 ? INFINITY : 1.0f;
      (loss_of(model, samples(1).to(one.device), false) * factor).backward();
      require(zero.step({.learning_rate = 0.5, .check_finite = true}).skipped, "an infinite gradient was applied");
      zero.gather_weights();
      Awkward untouched(5);
      for (const auto& [name, value] : weights_of(*model)) require(torch::equal(value, weights_of(*untouched).at(name)), name);
    });
}

TEST_CASE("operators of backward in a device's thread are announced, and what the callback throws there reaches the caller") {
  use_test_device();
  const torch::Tensor a = torch::ones({3, 3}).to(test_device(0)).set_requires_grad(true);
  const torch::Tensor x = torch::ones({3, 3}).to(test_device(0)).set_requires_grad(true);
  int num_calls = 0;
  std::set<std::thread::id> threads;
  bool refuse = false;
  UseWatch watch([&](const std::vector<int>&, const std::vector<int>&) {
    if (refuse) throw std::runtime_error("peer lost");
    ++num_calls;
    threads.insert(std::this_thread::get_id());
  });
  watch.add(a, 0);
  const torch::Tensor first = torch::mm(x, a).sum(), second = torch::mm(x, a).sum();
  num_calls = 0;
  threads.clear();
  first.backward();
  CHECK(num_calls >= 1);  // d x = g a'
  CHECK(threads.count(std::this_thread::get_id()) == 0);
  refuse = true;
  CHECK_THROWS_WITH(second.backward(), doctest::Contains("peer lost"));
}

TEST_CASE("lent memory is the device's of the tensor that gets it") {
  use_test_device();
  UnitMemory memory(1 << 20);
  const auto bytes_on = [](c10::Device device) { return without_memory(100, at::TensorOptions(at::kByte).device(device)); };
  const at::Tensor a = bytes_on(test_device(0)), b = bytes_on(test_device(1)), c = bytes_on(test_device(0));
  memory.attach(a);
  const void* const block = a.const_data_ptr();
  CHECK(a.storage().data_ptr().device() == test_device(0));
  memory.detach(a);
  CHECK(a.device() == test_device(0));
  CHECK_THROWS_WITH_AS(a.sum(), doctest::Contains("gather_weights()"), c10::Error);
  memory.attach(b);
  CHECK(b.const_data_ptr() != block);
  CHECK(b.storage().data_ptr().device() == test_device(1));
  memory.attach(c);
  CHECK(c.const_data_ptr() == block);
  memory.detach(b);
  memory.detach(c);
}

TEST_CASE("make_strategy() builds ZeRO on a device; parameters on two devices or none are refused by name") {
  use_test_device();
  Group group;
  for (const int stage : {1, 2, 3}) {
    Awkward model(5, test_device(0));
    CHECK(dynamic_cast<ZeroDataParallel*>(make_strategy(*model, group, {.zero = stage}).get()) != nullptr);
  }
  struct Scattered : nn::Module {
    explicit Scattered(c10::Device second) {
      register_parameter("here", torch::ones({2}).to(test_device(0)));
      register_parameter("there", torch::ones({2}).to(second));
    }
  };
  Scattered two(test_device(1)), host{c10::Device(at::kCPU)};
  CHECK_THROWS_WITH_AS(make_strategy(two, group, {.zero = 1}), doctest::Contains("parameter there is on"), Error);
  CHECK_THROWS_WITH_AS(make_strategy(host, group, {.zero = 3}), doctest::Contains("parameter there is on cpu"), Error);
  struct Meta : nn::Module {
    Meta() { register_parameter("weight", torch::ones({2}, at::kMeta)); }
  } meta;
  CHECK_THROWS_WITH_AS(make_strategy(meta, group, {.zero = 1}), doctest::Contains("parameter weight cannot be divided"), Error);
}

}  // namespace
}  // namespace cohort
