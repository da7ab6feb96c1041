#include "cohort/comm/collective_work.h"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <atomic>
#include <thread>

#include "cohort/base/fail.h"
#include "tests/support/backend_ranks.h"

namespace cohort {
namespace {

TEST_CASE("works: futures complete without wait, callbacks run, results are given, calls from callbacks work") {
  for (const RankKind kind : kRankKinds)
    run_ranks_well(3, kind, [](CollectiveBackend& backend) {
      const int rank = backend.getRank();
      std::vector<c10::intrusive_ptr<c10d::Work>> works;
      std::vector<Tensors> tensors;
      for (int i = 0; i < 8; ++i) {
        tensors.push_back({at::full({5}, static_cast<float>(rank + i))});
        works.push_back(backend.allreduce(tensors.back()));
      }
      std::atomic<int> called{0};
      for (int i = 0; i < 8; ++i) works[i]->getFuture()->addCallback([&](c10::ivalue::Future&) { ++called; });
      const auto chained = works[7]->getFuture()->then([&](c10::ivalue::Future& future) { return future.value().toTensorVector()[0] * 2; },
                                                       c10::TensorType::get());
      chained->wait();
      require(chained->value().toTensor().eq(2 * (3 + 3 * 7)).all().item<bool>(), "the chained value");
      for (int i = 0; i < 8; ++i) {
        while (!works[i]->isCompleted()) std::this_thread::yield();
        require(works[i]->isSuccess() && works[i]->wait() && works[i]->result()[0].eq(3.0 + 3 * i).all().item<bool>(), "work");
        require(works[i]->getSequencenumber() == static_cast<uint64_t>(i + 1), "sequence");
        works[i]->getFuture()->wait();
      }
      require(called == 8, "callbacks");

      // A callback that exchanges again, in whichever thread it runs.
      Tensors first{at::ones({2})}, second{at::ones({2})};
      auto work = backend.allreduce(first);
      auto future = work->getFuture()->then(
          [&](c10::ivalue::Future&) {
            backend.allreduce(second)->wait();
            return second[0];
          },
          c10::TensorType::get());
      future->wait();
      require(second[0].eq(3).all().item<bool>(), "a call in a callback");
      // A dropped work still runs, for the other ranks.
      Tensors dropped{at::ones({2})};
      backend.allreduce(dropped);
      backend.barrier()->wait();
      require(dropped[0].eq(3).all().item<bool>(), "a dropped work");
    });
}

TEST_CASE("messages: tags, any source, order, under way beside calls") {
  for (const RankKind kind : kRankKinds)
    run_ranks_well(3, kind, [](CollectiveBackend& backend) {
      const int rank = backend.getRank();
      if (rank == 0) {
        Tensors a{at::zeros({2})}, b{at::zeros({2})}, any{with_gaps(at::zeros({3}))}, sum{at::ones({1})}, empty{at::zeros({0})};
        auto late = backend.recv(b, 1, 8), early = backend.recv(a, 1, 7);
        auto reduced = backend.allreduce(sum);
        early->wait();
        late->wait();
        reduced->wait();
        require(a[0].eq(7).all().item<bool>() && b[0].eq(8).all().item<bool>() && sum[0].item<float>() == 3, "tags");
        auto from_any = backend.recvAnysource(any, 9);
        from_any->wait();
        require(from_any->sourceRank() == 2 && any[0].eq(9).all().item<bool>(), "any source");
        backend.recv(empty, 2, 1)->wait();
      } else {
        Tensors sum{at::ones({1})};
        if (rank == 1)
          for (const int tag : {7, 8}) {
            Tensors sent{at::full({2}, static_cast<float>(tag))};
            backend.send(sent, 0, tag)->wait();
          }
        backend.allreduce(sum)->wait();
        Tensors sent{with_gaps(at::full({3}, 9.0f))}, empty{at::zeros({0})};
        if (rank == 2) backend.send(sent, 0, 9)->wait();
        if (rank == 2) backend.send(empty, 0, 1)->wait();
      }
    });
}

TEST_CASE("two groups at once, each with calls under way") {
  BackendRanks one(3, RankKind::kShm), other(3, RankKind::kOwnThread);
  for (const std::string& error : one.run([&](CollectiveBackend& first) {
         const BackendPointer second = other.backend(first.getRank());
         for (int i = 0; i < 20; ++i) {
           Tensors a{at::full({3}, 1.0f)}, b{at::full({4}, 2.0f)};
           auto x = first.allreduce(a), y = second->allreduce(b);
           if (i % 2) x->wait(), y->wait();
           else y->wait(), x->wait();
           require(a[0].eq(3).all().item<bool>() && b[0].eq(6).all().item<bool>(), "groups");
         }
       }))
    CHECK(error == "");
}

TEST_CASE("arguments that cannot be carried out are refused with a sentence, and the group goes on") {
  run_ranks_well(2, RankKind::kThread, [](CollectiveBackend& backend) {
    const auto refused = [](const std::string& part, const std::function<void()>& call) {
      try {
        call();
      } catch (const Error& error) {
        require(error.code() == ErrorCode::kBadInput && std::string(error.what()).find(part) != std::string::npos, error.what());
        return;
      }
      throw std::runtime_error("accepted: " + part);
    };
    Tensors two{at::ones({2}), at::ones({2})}, one{at::ones({2})}, whole{at::ones({2}, at::kLong)}, sparse{at::ones({2}).to_sparse()},
        undefined{at::Tensor()};
    c10d::AllreduceOptions options;
    refused("one input tensor", [&] { backend.allreduce(two); });
    refused("not dense", [&] { backend.allreduce(sparse); });
    refused("undefined", [&] { backend.allreduce(undefined); });
    options.reduceOp = RedOp::BAND;
    refused("bitwise and of Float", [&] { backend.allreduce(one, options); });
    options.reduceOp = RedOp::AVG;
    refused("average of Long", [&] { backend.allreduce(whole, options); });
    options.reduceOp = c10d::makePreMulSum(0.5);
    refused("PREMUL_SUM", [&] { backend.allreduce(one, options); });
    c10d::BroadcastOptions broadcast;
    broadcast.rootRank = 2;
    refused("no rank 2", [&] { backend.broadcast(one, broadcast); });
    at::Tensor small = at::ones({3}), input = at::ones({2}), integers = at::ones({4}, at::kInt), rows = at::ones({3, 2});
    refused("4 are wanted", [&] { backend._allgather_base(small, input); });
    refused("differ in type", [&] { backend._allgather_base(integers, input); });
    std::vector<int64_t> none, bad{1, 1}, negative{-1, 4};
    refused("cannot divide", [&] { backend.alltoall_base(rows, rows, none, none); });
    refused("add up", [&] { backend.alltoall_base(rows, rows, bad, bad); });
    refused("add up", [&] { backend.alltoall_base(rows, rows, negative, negative); });
    refused("other ranks only", [&] { backend.send(one, backend.getRank(), 0); });
    refused("no rank 5", [&] { backend.send(one, 5, 0); });
    backend.allreduce(one)->wait();
    require(one[0].eq(2).all().item<bool>(), "the group goes on");
  });
}

TEST_CASE("a wait with a limit ends, the work goes on, and every call fails after the group has") {
  for (const RankKind kind : kRankKinds) {
    BackendRanks ranks(2, kind, 0.3);
    const std::vector<std::string> errors = ranks.run([](CollectiveBackend& backend) {
      Tensors tensor{at::ones({2})};
      if (backend.getRank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      auto work = backend.allreduce(tensor);
      if (backend.getRank() == 0)
        CHECK_THROWS_WITH_AS(work->wait(std::chrono::milliseconds(5)), doctest::Contains("ended before it did"), Error);
      work->wait();
      require(tensor[0].eq(2).all().item<bool>(), "the sum");
      if (backend.getRank() == 1) return;
      auto lost = backend.allreduce(tensor), queued = backend.allreduce(tensor);
      std::string first, second, third;
      try {
        lost->wait();
      } catch (const Error& error) {
        first = error.what();
      }
      try {
        queued->wait();
      } catch (const Error& error) {
        second = error.what();
      }
      try {
        backend.barrier()->wait();
      } catch (const Error& error) {
        third = error.what();
      }
      require(first.find("rank 1") != std::string::npos && first.find("all-reduce #2") != std::string::npos, "first: " + first);
      require(second.find("failed before") != std::string::npos && third.find("failed before") != std::string::npos, second + third);
      require(lost->isCompleted() && !lost->isSuccess() && lost->exception() != nullptr && lost->getFuture()->hasError(), "states");
    });
    CHECK(errors[0] == "");
    CHECK(errors[1] == "");
  }
}

}  // namespace
}  // namespace cohort
