#pragma once
// For tests: thread ranks that have a device each, one that is none (device.h).

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/comm/compute_threads.h"
#include "cohort/comm/group.h"
#include "tests/support/device.h"

namespace cohort {

/// How a rank of the test exchanges what lies on its device; kHost: it has none; kMixed: rank 0 has one, and the others have none.
enum class Way { kHost, kThroughHost, kDevice, kMixed };

struct DeviceRank {
  Group& group;
  c10::Device device;
  /// Calls of the device's backend so far; 0 where there is none.
  std::function<int()> num_device_calls;
};

/// Runs `body` in `num_ranks` threads, at most kNumTestDevices; what each threw, or "".
inline std::vector<std::string> run_device_ranks(int num_ranks, Way way, const std::function<void(DeviceRank&)>& body) {
  use_test_device();
  warm_up_vector_functions();
  const BackendRanks devices(num_ranks, RankKind::kThread);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  return BackendRanks(num_ranks, RankKind::kThread).run([&](CollectiveBackend& self) {
    const int rank = self.getRank();
    at::set_num_threads(1);
    c10::intrusive_ptr<TestDeviceBackend> backend;
    auto link = std::make_shared<DeviceLink>();
    link->backend = "test";
    link->device = test_device(rank);
    link->identity = concat("device ", way == Way::kDevice ? rank : 0);
    link->make = [&](const auto&, int, int, double) { return backend = c10::make_intrusive<TestDeviceBackend>(devices.backend(rank)); };
    const bool has_one = way != Way::kHost && (way != Way::kMixed || rank == 0);
    if (!has_one) link->device = c10::Device(at::kCPU), link->why_not = "it computes on the CPU";
    GroupOptions options{.timeout_seconds = 20};
    if (way != Way::kHost) options.device = link;
    Group group = Group::create(store, rank, num_ranks, options);
    require(group.device_backend_name() == (way == Way::kDevice ? "test" : ""), "which backend");
    DeviceRank one{group, has_one ? test_device(rank) : c10::Device(at::kCPU), [&] { return backend ? backend->num_calls : 0; }};
    body(one);
  });
}

}  // namespace cohort
