// Jobs whose ranks compute on devices of several kinds: rank 0 on one that is none (tests/support/device.h), the others on the CPU. They
// exchange through host memory, and one rank updates each piece of the weights, so that all have the same bits.
#include <doctest/doctest.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/job/specs/devices.h"
#include "cohort/parallel/make_strategy.h"
#include "cohort/parallel/strategy/data_parallel.h"
#include "cohort/train/model/precision.h"
#include "tests/support/device_ranks.h"
#include "tests/support/zero_checkpoint.h"
#include "tests/support/zero_model.h"

namespace cohort {
namespace {

using namespace zero_test;

void run_well(int num_ranks, Way way, const std::string& what, const std::function<void(DeviceRank&)>& body) {
  for (const std::string& error : run_device_ranks(num_ranks, way, body)) CHECK_MESSAGE(error == "", what);
}

/// What a layout with this stage (0: dp) makes of the model.
std::unique_ptr<Strategy> strategy_of(Awkward& model, Group& group, const Scenario& s) {
  return make_strategy(*model, group, {.zero = s.stage, .rule = s.rule(), .bucket_bytes = s.bucket_bytes});
}

ZeroDataParallel& as_zero(Strategy& strategy) {
  auto* const zero = dynamic_cast<ZeroDataParallel*>(&strategy);
  require(zero != nullptr, "one rank updates each piece");
  return *zero;
}

TEST_CASE(
    "mixed devices: dp and each stage train as one process does, accumulated, clipped and with uneven shares; all ranks hold the same "
    "bits") {
  use_test_device();
  for (const Scenario& common :
       {Scenario{.num_ranks = 3}, Scenario{.num_ranks = 3, .kind = UpdateRule::Kind::kAdamW, .num_micro_steps = 2, .clip_norm = 0.5},
        Scenario{.num_ranks = 3, .num_micro_steps = 2, .clip_norm = 0.5, .uneven = true},
        Scenario{.num_ranks = 4, .kind = UpdateRule::Kind::kAdamW, .uneven = true, .bucket_bytes = 1}}) {
    const Weights expected = reference(common);
    for (const int stage : {0, 1, 2, 3}) {
      Scenario s = common;
      s.stage = stage;
      std::vector<Weights> found(static_cast<size_t>(s.num_ranks));
      run_well(s.num_ranks, Way::kMixed, text_of(s), [&](DeviceRank& one) {
        const auto rank = static_cast<size_t>(one.group.rank());
        require(one.device.is_cpu() == (rank > 0), "the device");
        Awkward model(rank == 0 ? 5 : 77 + rank, one.device);  // Rank 0's weights are everybody's from the start.
        const auto strategy = strategy_of(model, one.group, s);
        ZeroDataParallel& zero = as_zero(*strategy);
        train(zero, model, one.group, s, 1, kSteps);
        for (const NamedTensor& parameter : distinct_parameters(*model)) require(parameter.tensor.device() == one.device, parameter.name);
        zero.gather_weights();
        found[rank] = weights_of(*model);
      });
      if (found[0].empty()) continue;  // Told above.
      check_close(found[0], expected, text_of(s));
      for (const Weights& other : found)
        for (const auto& [name, value] : found[0]) CHECK_MESSAGE(torch::equal(other.at(name), value), text_of(s), ": ", name);
    }
  }
}

TEST_CASE("mixed devices: a checkpoint of theirs goes on in host memory, and the other way round") {
  use_test_device();
  for (const auto& [from, to] : {std::pair{Way::kMixed, Way::kHost}, std::pair{Way::kHost, Way::kMixed}}) {
    const Scenario s{.num_ranks = 3, .kind = UpdateRule::Kind::kAdamW};
    Saved saved;
    run_well(s.num_ranks, from, "saving", [&](DeviceRank& one) {
      Awkward model(5, one.device);
      const auto strategy = strategy_of(model, one.group, s);
      train(as_zero(*strategy), model, one.group, s, 1, 2);
      saved.save(strategy->saved_pieces());
    });
    for (const auto& [name, writes] : saved.writes)
      for (const int count : writes) REQUIRE_MESSAGE(count == 1, name);
    Weights found;
    run_well(s.num_ranks, to, "going on", [&](DeviceRank& one) {
      Awkward model(99, one.device);
      const auto strategy = strategy_of(model, one.group, s);
      saved.load(strategy->loaded_pieces());
      strategy->loaded();
      train(as_zero(*strategy), model, one.group, s, 3, kSteps);
      if (one.group.rank() == 0) found = weights_of(*model);
    });
    REQUIRE(!found.empty());
    check_close(found, reference(s), "after the checkpoint");
  }
}

/// One layer with what batch norm would keep.
struct Small : nn::Module {
  torch::Tensor weight, mean;
  explicit Small(c10::Device device) {
    weight = register_parameter("weight", (torch::arange(12, torch::kFloat).view({4, 3}) / 7).to(device));
    mean = register_buffer("mean", torch::zeros({4}).to(device));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::NoGradGuard no_grad;
    mean.mul_(0.5).add_(x.mean(0), 0.5);
    const torch::AutoGradMode grad(true);
    return torch::tanh(x.matmul(weight));
  }
};

TEST_CASE("mixed devices: gradients for a program's own optimizer, and buffers, are the same on all ranks") {
  use_test_device();
  constexpr int kRanks = 3;
  const torch::Tensor rows = torch::sin(torch::arange(24, torch::kFloat).view({6, 4}));
  Small alone{c10::Device(at::kCPU)};
  (alone.forward(rows).square().sum() / 6).backward();
  std::vector<torch::Tensor> gradients(kRanks), means(kRanks);
  run_well(kRanks, Way::kMixed, "own optimizer", [&](DeviceRank& one) {
    const int rank = one.group.rank();
    Small model(one.device);
    DataParallel parallel(model, one.group, {.mean = GradientMean::kSamples, .bucket_bytes = 64});
    for (int step = 0; step < 3; ++step) {  // The hash of weights is compared in each.
      model.weight.mutable_grad() = torch::Tensor();
      const int64_t begin = rank == 0 ? 0 : rank + 2, count = rank == 0 ? 3 : rank == 1 ? 1 : 2;
      parallel.set_local_samples(count);
      parallel.set_buffer_share(static_cast<double>(count) / 6);
      model.forward(rows.narrow(0, begin, count).to(one.device)).square().sum().div(count).backward();
      if (step == 0) means[static_cast<size_t>(rank)] = model.mean.cpu().clone();
    }
    gradients[static_cast<size_t>(rank)] = model.weight.grad().cpu().clone();
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto at = static_cast<size_t>(rank);
    REQUIRE(gradients[at].defined());
    CHECK(torch::equal(gradients[at], gradients[0]));
    CHECK(torch::equal(means[at], means[0]));
  }
  CHECK(torch::allclose(gradients[0], alone.weight.grad(), 1e-5, 1e-6));
  CHECK(torch::allclose(means[0], alone.mean, 1e-5, 1e-6));
}

TEST_CASE("mixed devices: NCCL and compression are refused on all ranks alike") {
  use_test_device();
  const auto store = c10::make_intrusive<c10d::HashStore>();
  for (const std::string& error : BackendRanks(2, RankKind::kThread).run([&](CollectiveBackend& self) {
         const int rank = self.getRank();
         const auto link = std::make_shared<DeviceLink>(DeviceLink{.device = test_device(0), .identity = "a"});
         const auto none = make_device_link(parse_devices("cuda:0,cpu"), c10::Device(at::kCPU));
         Group group = Group::create(store, rank, 2, {.backend = "nccl", .timeout_seconds = 20, .device = rank == 0 ? link : none});
       }))
    CHECK(error == "backend nccl: rank 1: it computes on the CPU");
  for (const std::string& error : run_device_ranks(2, Way::kMixed, [](DeviceRank& one) {
         Small model(one.device);
         make_strategy(model, one.group, {.compress = "int8"});
       }))
    CHECK(error.find("use compress=none") != std::string::npos);
}

TEST_CASE("devices of ranks: the CPU needs no link where all are on it, and GPUs are refused where LibTorch has none") {
  CHECK(device_of_rank(parse_devices("cpu"), World()).is_cpu());
  CHECK(device_of_rank(parse_devices("cuda:0,cpu"), World{.rank = 1, .size = 2, .local_rank = 1, .local_size = 2}).is_cpu());
  CHECK(make_device_link(parse_devices("cpu,cpu"), c10::Device(at::kCPU)) == nullptr);
  CHECK(make_device_link(parse_devices("cuda:0,cpu"), c10::Device(at::kCPU))->why_not == "it computes on the CPU");
  check_devices(parse_devices("cpu,cpu"));
  if (torch::cuda::is_available()) return;
  CHECK_THROWS_WITH_AS(device_of_rank(parse_devices("cuda:0,cpu"), World{.rank = 0, .size = 2, .local_size = 2}),
                       doctest::Contains("--device cuda:0 (rank 0)"), Error);
}

}  // namespace
}  // namespace cohort
