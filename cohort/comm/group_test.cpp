#include "cohort/comm/group.h"

#include <doctest/doctest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "cohort/base/error.h"
#include "cohort/base/random.h"
#include "cohort/comm/thread_ranks.h"

namespace cohort {
namespace {

/// Numbers whose sum depends on the order of addition: large and small ones of both signs.
torch::Tensor awkward(int rank, int64_t count, torch::ScalarType type) {
  torch::Tensor out = torch::empty({count}, torch::kDouble);
  for (int64_t i = 0; i < count; ++i) {
    const double u = unit_interval(random_bits(7, rank, i)) - 0.5;
    out.data_ptr<double>()[i] =
        type == torch::kLong ? std::floor(u * 1e6) : u * std::pow(10.0, static_cast<double>(random_bits(9, rank, i) % 7));
  }
  return out.to(type);
}

TEST_CASE("sums are added in rank order, bitwise, for every awkward size, type and number of ranks") {
  for (const char* backend : {"shm", "gloo"})
    for (const int num_ranks : {2, 3, 4, 5}) {
      run_thread_ranks(num_ranks,
                       [&](Group& group) {
                         if (group.backend_name() != backend) FAIL(group.backend_name());
                         for (const torch::ScalarType type : {torch::kFloat, torch::kDouble, torch::kLong}) {
                           const int64_t threshold = 32 * 1024 / torch::elementSize(type);
                           for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{1009}, threshold - 1, threshold,
                                                       threshold + 1, int64_t{100003}}) {
                             torch::Tensor expected = awkward(0, count, type).clone();
                             for (int rank = 1; rank < num_ranks; ++rank) expected.add_(awkward(rank, count, type));
                             // Twice: in memory of the test's own, and in the group's.
                             torch::Tensor mine = awkward(group.rank(), count, type),
                                           shared = group.allocate(count, torch::TensorOptions(type));
                             if (shared.count_nonzero().item<int64_t>() != 0) FAIL("allocate gives zeros");
                             shared.copy_(mine);
                             group.all_reduce_sum(mine, "the test's numbers")->wait();
                             group.all_reduce_sum(shared, "the test's numbers")->wait();
                             if (!torch::equal(mine, expected) || !torch::equal(shared, expected))
                               FAIL(concat(num_ranks, " ranks, ", count, " elements of ", type, " on rank ", group.rank()));
                           }
                         }
                       },
                       {.backend = backend, .timeout_seconds = 20});
    }
}

TEST_CASE("several sums under way end in the order in which they were started") {
  for (const char* backend : {"shm", "gloo"})
    run_thread_ranks(
        3,
        [](Group& group) {
          std::vector<torch::Tensor> tensors;
          std::vector<std::unique_ptr<Pending>> pending;
          for (int i = 0; i < 6; ++i) {
            tensors.push_back(group.allocate(i % 2 ? 10 : 50001, torch::kFloat).fill_(static_cast<float>(group.rank() + 1 + i)));
            pending.push_back(group.all_reduce_sum(tensors.back(), "sum"));
          }
          for (int i = 0; i < 6; ++i) {
            pending[i]->wait();
            if (!tensors[i].eq(6.0 + 3 * i).all().item<bool>()) FAIL(concat("sum ", i, " is wrong on rank ", group.rank()));
          }
        },
        {.backend = backend, .timeout_seconds = 20});
}

TEST_CASE("broadcast, all-gather, texts and barrier") {
  for (const char* backend : {"shm", "gloo"})
    run_thread_ranks(4,
                     [](Group& group) {
                       torch::Tensor tensor = torch::full({5}, group.rank(), torch::kLong);
                       group.broadcast(tensor, 2, "tensor");
                       torch::Tensor gathered = torch::empty({4, 2}, torch::kFloat), mine = torch::full({2}, group.rank() * 1.5f);
                       group.all_gather(gathered, mine, "numbers");
                       const std::vector<std::string> texts =
                           group.all_gather_text(std::string(static_cast<size_t>(group.rank()), 'x'), "texts");
                       const std::vector<std::string> nothing = group.all_gather_text("", "nothing");
                       group.barrier();
                       if (!tensor.eq(2).all().item<bool>()) FAIL("broadcast");
                       for (int rank = 0; rank < 4; ++rank) {
                         if (gathered[rank][1].item<float>() != rank * 1.5f) FAIL("all_gather");
                         if (texts[rank] != std::string(static_cast<size_t>(rank), 'x') || !nothing[rank].empty()) FAIL("all_gather_text");
                       }
                       // Longer than a tile of the shared staging memory.
                       torch::Tensor large = torch::full({200001}, static_cast<float>(group.rank())), all = torch::empty({4, 200001});
                       group.all_gather(all, large, "large");
                       group.broadcast(large, 3, "large");
                       for (int rank = 0; rank < 4; ++rank)
                         if (!all[rank].eq(rank).all().item<bool>()) FAIL("large all_gather");
                       if (!large.eq(3).all().item<bool>()) FAIL("large broadcast");
                     },
                     {.backend = backend, .timeout_seconds = 20});
}

TEST_CASE("a group of one rank exchanges nothing") {
  Group group;
  torch::Tensor tensor = torch::arange(4);
  group.all_reduce_sum(tensor, "t")->wait();
  group.broadcast(tensor, 0, "t");
  group.barrier();
  CHECK(torch::equal(tensor, torch::arange(4)));
  CHECK(group.all_gather_text("a", "t") == std::vector<std::string>{"a"});
}

TEST_CASE("a rank that does not come to a collective is an error within the time-out") {
  for (const char* backend : {"shm", "gloo"}) {
    const auto start = std::chrono::steady_clock::now();
    std::string text;
    try {
      run_thread_ranks(2,
                       [&](Group& group) {
                         if (group.rank() == 1) {
                           std::this_thread::sleep_for(std::chrono::milliseconds(2500));
                           return;
                         }
                         torch::Tensor tensor = torch::ones({10});
                         group.all_reduce_sum(tensor, "gradient bucket 3")->wait();
                       },
                       {.backend = backend, .timeout_seconds = 1});
    } catch (const Error& error) {
      text = error.what();
      CHECK(error.code() == ErrorCode::kEnvironment);
    }
    CHECK(text.find("gradient bucket 3") != std::string::npos);
    CHECK(text.find("rank 0 of 2") != std::string::npos);
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
  }
}

TEST_CASE("an unknown backend is refused") {
  CHECK_THROWS_WITH_AS(run_thread_ranks(2, [](Group&) {}, {.backend = "carrier-pigeon"}), doctest::Contains("carrier-pigeon"), Error);
}

}  // namespace
}  // namespace cohort
