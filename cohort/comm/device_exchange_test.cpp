#include "cohort/comm/device_exchange.h"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <chrono>
#include <thread>

#include "cohort/base/fail.h"
#include "tests/support/backend_ranks.h"
#include "tests/support/text.h"

namespace cohort {
namespace {

/// A device's backend whose works never end, or end with an error, or that cannot start them.
class BadBackend : public c10d::Backend {
 public:
  enum class Kind { kHangs, kFails, kCannotStart };
  BadBackend(int rank, int size, Kind kind) : c10d::Backend(rank, size), kind_(kind) {}
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override {
    if (kind_ == Kind::kCannotStart) throw std::runtime_error("unhandled system error\nwith a stack trace");
    struct BadWork : c10d::Work {
      explicit BadWork(bool ends) : ends(ends) {}
      bool isCompleted() override { return ends; }
      bool wait(std::chrono::milliseconds) override { throw std::runtime_error("remote process exited\nwith a stack trace"); }
      bool ends;
    };
    return c10::make_intrusive<BadWork>(kind_ == Kind::kFails);
  }
  const std::string getBackendName() const override { return "bad"; }
  void abort() override { ++num_aborts; }
  int num_aborts = 0;

 private:
  Kind kind_;
};

/// Ranks with a control plane and a second one that simulates a device's backend.
struct Planes {
  Planes(int size, double timeout_seconds)
      : control(size, RankKind::kThread, timeout_seconds), device(size, RankKind::kThread, timeout_seconds) {}
  BackendRanks control, device;
};

std::vector<std::string> run(int size, double timeout_seconds,
                             const std::function<void(CollectiveBackend& control, std::shared_ptr<DeviceExchange> exchange)>& body) {
  const Planes planes(size, timeout_seconds);
  return planes.control.run([&](CollectiveBackend& control) {
    body(control, std::make_shared<DeviceExchange>(planes.device.backend(control.getRank()), control.lane(),
                                                   DeviceExchange::Options{.backend = "fabric", .timeout_seconds = timeout_seconds}));
  });
}

std::vector<std::string> run_bad(BadBackend::Kind kind) {
  return BackendRanks(2, RankKind::kThread, 0.5).run([&](CollectiveBackend& control) {
    const auto backend = c10::make_intrusive<BadBackend>(control.getRank(), 2, kind);
    const auto exchange = std::make_shared<DeviceExchange>(backend, control.lane(), DeviceExchange::Options{.timeout_seconds = 0.5});
    at::Tensor tensor = at::ones({3});
    std::string first, second;
    try {
      exchange->start(Op::kAllReduce, tensor, tensor, "gradient bucket 3")->wait();
    } catch (const Error& error) {
      require(error.code() == ErrorCode::kEnvironment, "code");
      first = error.what();
    }
    try {
      exchange->start(Op::kAllReduce, tensor, tensor, "gradient bucket 4")->wait();
    } catch (const Error& error) {
      second = error.what();
    }
    require(backend->num_aborts == 1, "aborted once");
    require(second.find("gradient bucket 4 cannot start: ") != std::string::npos, second);
    throw std::runtime_error(first);
  });
}

TEST_CASE("ranks that have a device each exchange on it; others say why not") {
  const auto offer = [](const std::string& identity, const std::string& why_not) {
    DeviceLink link;
    link.identity = identity;
    link.why_not = why_not;
    return device_offer(link);
  };
  CHECK(why_no_device_exchange({offer("GPU 0", ""), offer("GPU 1", "")}, "nccl") == "");
  const std::string shared = why_no_device_exchange({offer("GPU 0", ""), offer("GPU 1", ""), offer("GPU 0", "")}, "nccl");
  CHECK(mentions(shared, "ranks 0 and 2 share one device (GPU 0), which nccl refuses"));
  CHECK(mentions(shared, "--backend gloo"));
  CHECK(why_no_device_exchange({offer("GPU 0", ""), offer("", "no driver")}, "nccl") == "rank 1: no driver");
  CHECK(why_no_device_exchange({"", offer("GPU 0", "")}, "nccl") == "rank 0: it has no device");
}

TEST_CASE("every operation goes to the device's backend, several at a time and of any size") {
  for (const int size : {2, 3})
    for (const std::string& error : run(size, 20, [&](CollectiveBackend& control, std::shared_ptr<DeviceExchange> exchange) {
           const int rank = control.getRank();
           std::vector<at::Tensor> tensors;
           std::vector<std::unique_ptr<Pending>> pending;
           for (const int64_t count : {0, 1, 7, 1009}) {
             tensors.push_back(at::full({count}, rank + 1.0f));
             pending.push_back(exchange->start(Op::kAllReduce, tensors.back(), tensors.back(), concat("tensor of ", count)));
           }
           for (size_t i = 0; i < pending.size(); ++i) {
             pending[i]->wait();
             pending[i]->wait();  // Again does nothing.
             require(tensors[i].eq(size * (size + 1) / 2).all().item<bool>(), "sum");
           }
           at::Tensor largest = at::full({5}, rank, at::kLong), told = at::full({5}, rank, at::kLong);
           exchange->start(Op::kAllReduce, largest, largest, "largest", Reduction::kMax)->wait();
           exchange->start(Op::kBroadcast, told, told, "told", Reduction::kSum, 1)->wait();
           require(largest.eq(size - 1).all().item<bool>() && told.eq(1).all().item<bool>(), "maximum, broadcast");
           at::Tensor wide = at::arange(size * 11).to(at::kFloat), piece = at::zeros({11}), all = at::zeros({size * 11});
           exchange->start(Op::kReduceScatter, piece, wide, "scattered")->wait();
           exchange->start(Op::kAllGather, all, piece, "gathered")->wait();
           require(at::equal(all, wide * size), "reduce-scatter and all-gather");
           // Not waited for, but completed all the same.
           exchange->start(Op::kAllReduce, told, told, "dropped");
           require(told.eq(size).all().item<bool>(), "dropped");
           require(control.recorder().text().find("tensor of 7, before its all-reduce") != std::string::npos, "recorded");
         }))
      CHECK(error == "");
}

TEST_CASE("ranks that make different calls get an error before the device's result is used") {
  const std::vector<std::string> errors = run(3, 20, [](CollectiveBackend& control, std::shared_ptr<DeviceExchange> exchange) {
    at::Tensor tensor = at::ones({control.getRank() == 2 ? 4 : 5});
    exchange->start(Op::kAllReduce, tensor, tensor, "weights")->wait();
  });
  for (const std::string& error : errors) {
    CHECK(error == errors[0]);
    CHECK(mentions(error, "rank 2"));
    CHECK(mentions(error, "weights"));
  }
}

TEST_CASE("a rank that does not come to an exchange on a device is named within the time-out") {
  const auto began = std::chrono::steady_clock::now();
  const std::vector<std::string> errors = run(2, 0.5, [](CollectiveBackend& control, std::shared_ptr<DeviceExchange> exchange) {
    at::Tensor tensor = at::ones({5});
    exchange->start(Op::kAllReduce, tensor, tensor, "first bucket")->wait();
    if (control.getRank() == 1) return std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    exchange->start(Op::kAllReduce, tensor, tensor, "second bucket")->wait();
  });
  CHECK(mentions(errors[0], "second bucket"));
  CHECK(mentions(errors[0], "rank 1"));
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(20));
}

TEST_CASE("a device's backend that hangs, fails or cannot start is named with rank, operation and tensor, and ends the group") {
  for (const std::string& error : run_bad(BadBackend::Kind::kHangs))
    CHECK(mentions(error, "all ranks started it, and it did not end within 0.5 s"));
  for (const std::string& error : run_bad(BadBackend::Kind::kFails)) CHECK(mentions(error, "nccl gave it up [remote process exited]"));
  const std::vector<std::string> errors = run_bad(BadBackend::Kind::kCannotStart);
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(mentions(errors[static_cast<size_t>(rank)], "it could not be started [unhandled system error]"));
    CHECK(mentions(errors[static_cast<size_t>(rank)],
                   concat("the all-reduce #1 over nccl of gradient bucket 3 (3 Float) failed on rank ", rank, " of 2")));
  }
}

TEST_CASE("an exception that passes an exchange on a device ends the group") {
  for (const std::string& error : run(2, 5, [](CollectiveBackend&, std::shared_ptr<DeviceExchange> exchange) {
         at::Tensor tensor = at::ones({5});
         exchange->start(Op::kAllReduce, tensor, tensor, "first")->wait();
         std::string text;
         try {
           const auto pending = exchange->start(Op::kAllReduce, tensor, tensor, "abandoned");
           throw std::runtime_error("the model failed");
         } catch (const std::runtime_error& error) {
           text = error.what();
         }
         require(text == "the model failed", text);
         exchange->start(Op::kAllReduce, tensor, tensor, "next");
       })) {
    CHECK(mentions(error, "next cannot start"));
    CHECK(mentions(error, "abandoned"));
  }
}

}  // namespace
}  // namespace cohort
