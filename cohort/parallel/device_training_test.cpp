// Training on a device that exchanges by itself, in whole: which tensors go to the device's backend and which stay in host memory, with a
// device that is none (tests/support/device.h) in a GPU's place.
#include <doctest/doctest.h>
#include <torch/torch.h>

#include <map>

#include "cohort/base/fail.h"
#include "cohort/parallel/make_strategy.h"
#include "cohort/parallel/strategy/replicated.h"
#include "tests/support/device_ranks.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/threads.h"

namespace cohort {
namespace {

namespace nn = torch::nn;

/// Made on its device: Module::to() knows the devices of LibTorch alone.
struct Net : nn::Module {
  torch::Tensor first, bias, second, unused;
  torch::Tensor mean;  // What batch norm would keep.
  Net(uint64_t seed, c10::Device device) {
    const SeededDraws draws(seed);
    first = register_parameter("first", torch::randn({6, 40}).to(device));
    bias = register_parameter("bias", torch::randn({40}).to(device));
    second = register_parameter("second", torch::randn({40, 3}).to(device));
    unused = register_parameter("unused", torch::randn({3, 3}).to(device));
    mean = register_buffer("mean", torch::zeros({6}).to(device));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    {
      const torch::NoGradGuard no_grad;
      mean.mul_(0.9).add_(x.mean(0), 0.1);
    }
    return torch::tanh(x.matmul(first) + bias).matmul(second);
  }
};

torch::Tensor sample_of(int64_t step, int64_t index) { return torch::sin(torch::arange(6) * 1.7 + static_cast<double>(step * 5 + index)); }

/// One rank trains 4 steps on its part of 4 samples each; its model at the end, in host memory.
std::map<std::string, torch::Tensor> train(Group& group, c10::Device device) {
  Net net(static_cast<uint64_t>(group.rank() + 1), device);  // Rank 0's weights are everybody's from the start.
  const auto strategy = std::make_unique<Replicated>(net, group, UpdateRule{.kind = UpdateRule::Kind::kAdam},
                                                     DataParallelOptions{.bucket_bytes = 200, .first_bucket_bytes = 100});
  for (int64_t step = 0; step < 4; ++step) {
    std::vector<torch::Tensor> mine;
    for (int64_t i = group.rank(); i < 4; i += group.size()) mine.push_back(sample_of(step, i));
    const torch::Tensor x = torch::stack(mine).to(device);
    strategy->zero_grad();
    strategy->set_control(0, static_cast<float>(group.rank() + 1));
    (net.forward(x).square().sum() / 4).backward();
    strategy->finish_backward();
    require(strategy->control_sum(0) == static_cast<float>(group.size() * (group.size() + 1) / 2), "control number");
    strategy->step({.learning_rate = 0.01, .clip_norm = 0.5});
  }
  std::map<std::string, torch::Tensor> out;
  for (const auto& item : net.named_parameters()) out[item.key()] = item.value().detach().cpu().clone();
  for (const auto& item : net.named_buffers()) out[item.key()] = item.value().cpu().clone();
  return out;
}

/// The same training on two ranks; rank 0's model. `num_calls`: of each rank's device backend.
std::map<std::string, torch::Tensor> train_in_ranks(Way way, std::vector<int>* num_calls = nullptr) {
  std::vector<std::map<std::string, torch::Tensor>> models(2);
  const std::vector<std::string> errors = run_device_ranks(2, way, [&](DeviceRank& one) {
    const auto rank = static_cast<size_t>(one.group.rank());
    models[rank] = train(one.group, one.device);
    if (num_calls) (*num_calls)[rank] = one.num_device_calls();
  });
  for (const std::string& error : errors) CHECK(error == "");
  for (const auto& [name, tensor] : models[0]) CHECK_MESSAGE(torch::equal(tensor, models[1][name]), name);
  return models[0];
}

TEST_CASE("training on devices that exchange by themselves, or through the host where two ranks share one, is that in host memory") {
  use_test_device();
  const auto expected = train_in_ranks(Way::kHost);
  std::vector<int> num_calls(2);
  const auto on_device = train_in_ranks(Way::kDevice, &num_calls), through_host = train_in_ranks(Way::kThroughHost);
  REQUIRE(expected.size() == 5);
  for (const auto& [name, tensor] : expected) {
    CHECK_MESSAGE(torch::equal(on_device.at(name), through_host.at(name)), name);
    // The optimizer in host memory is different and rounds differently.
    CHECK_MESSAGE(torch::allclose(tensor, on_device.at(name), 1e-5, 1e-6), name);
  }
  // The broadcast of the model, and in each of 4 steps several buckets and the buffers: none of it through host memory.
  CHECK(num_calls[0] == num_calls[1]);
  CHECK(num_calls[0] >= 1 + 4 * 3);
}

TEST_CASE("a group takes host memory to the control plane and its device to the device's backend, its splits too") {
  use_test_device();
  const BackendRanks devices(3, RankKind::kThread);
  const auto hub_of_pair = std::make_unique<BackendRanks>(2, RankKind::kThread);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const std::vector<std::string> errors = BackendRanks(3, RankKind::kThread).run([&](CollectiveBackend& self) {
    const int rank = self.getRank();
    auto link = std::make_shared<DeviceLink>();
    link->backend = "test";
    link->device = test_device(rank);
    link->identity = concat("device ", rank);
    c10::intrusive_ptr<TestDeviceBackend> backend;
    link->make = [&](const auto&, int, int size, double) {
      const auto made = c10::make_intrusive<TestDeviceBackend>(size == 3 ? devices.backend(rank) : hub_of_pair->backend(rank - 1));
      if (size == 3) backend = made;
      else made->expected_device = rank;
      return made;
    };
    Group group = Group::create(store, rank, 3, {.timeout_seconds = 20, .device = link});
    const torch::TensorOptions here(test_device(rank));
    torch::Tensor there = torch::full({5}, rank + 1.0f), sum = there.to(here.device());
    group.all_reduce_sum(there, "host");
    require(backend->num_calls == 0 && there.eq(6).all().item<bool>(), "host memory");
    group.all_reduce_sum(sum, "device");
    torch::Tensor most = torch::full({5}, 1.0f * rank, here), told = torch::full({5}, 1.0f * rank, here), all = torch::zeros({3, 2}, here);
    group.all_reduce(most, Reduction::kMax, "most");
    group.broadcast(told, 2, "told");
    group.all_gather(all, torch::full({2}, 1.0f * rank, here), "all");
    torch::Tensor piece = torch::zeros({2}, here);
    group.start_reduce_scatter_sum(piece, all.view({-1}), "piece")->wait();
    require(backend->num_calls == 5, "calls on the device");
    require(sum.cpu().eq(6).all().item<bool>() && most.cpu().eq(2).all().item<bool>() && told.cpu().eq(2).all().item<bool>(), "values");
    for (int each = 0; each < 3; ++each) require(all[each].cpu().eq(each).all().item<bool>(), "gathered");
    require(piece.cpu().eq(3 * rank).all().item<bool>(), "scattered");
    require(group.exchangeable(sum).is_same(sum) && group.exchanges(at::kCPU) && !group.exchanges(test_device(3)), "exchangeable");
    require(group.exchangeable(torch::ones({2}, test_device(3))).is_cpu(), "another device's tensor");
    std::string text;
    try {
      group.start_all_reduce_sum(torch::ones({2}, test_device(3)), "a stranger");
    } catch (const Error& error) {
      text = error.what();
    }
    require(text.find("all-reduce of a stranger: a contiguous CPU tensor is wanted") != std::string::npos, text);
    if (rank == 0) return;
    Group pair = group.split({1, 2}, "pair");
    torch::Tensor of_pair = torch::full({4}, 1.0f * rank, here);
    pair.all_reduce_sum(of_pair, "pair's");
    require(pair.device_backend_name() == "test" && backend->num_calls == 5 && of_pair.cpu().eq(3).all().item<bool>(), "pair");
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("nccl where it is not available is refused on all ranks alike; auto goes through the host") {
  use_test_device();
  const auto errors_of = [](const std::string& backend, const std::function<DeviceLink(int)>& link_of) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    return BackendRanks(2, RankKind::kThread).run([&](CollectiveBackend& self) {
      const auto link = std::make_shared<DeviceLink>(link_of(self.getRank()));
      Group group = Group::create(store, self.getRank(), 2, {.backend = backend, .timeout_seconds = 20, .device = link});
      group.barrier();  // A group that ends while its peer is still connecting looks to that one like a lost rank.
    });
  };
  const auto shared = [](int) { return DeviceLink{.device = test_device(0), .identity = "the only one"}; };
  const auto lacking = [](int rank) { return DeviceLink{.device = test_device(rank), .identity = "a", .why_not = rank ? "no GPU" : ""}; };
  for (const std::string& error : errors_of("nccl", shared)) {
    CHECK(error.find("backend nccl: ranks 0 and 1 share one device (the only one)") != std::string::npos);
    CHECK(error.find("--backend gloo") != std::string::npos);
  }
  for (const std::string& error : errors_of("nccl", lacking)) CHECK(error == "backend nccl: rank 1: no GPU");
  for (const std::string& error : errors_of("auto", shared)) CHECK(error == "");
  for (const std::string& error : errors_of("gloo", lacking)) CHECK(error == "");
  CHECK_THROWS_WITH_AS(Group::create(c10::make_intrusive<c10d::HashStore>(), 0, 2, {.backend = "nccl"}), doctest::Contains("--device cuda"),
                       Error);
}

TEST_CASE("what works on gradients in host memory alone is refused on a device") {
  use_test_device();
  Net net(1, test_device(0));
  Group group;
  CHECK_THROWS_WITH_AS(make_strategy(net, group, {.compress = "int8"}), doctest::Contains("use compress=none"), Error);
}

}  // namespace
}  // namespace cohort
