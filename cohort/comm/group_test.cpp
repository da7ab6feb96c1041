#include "cohort/comm/group.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "tests/support/thread_ranks.h"

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
                             // Twice: in memory of the test, and in the group's.
                             torch::Tensor mine = awkward(group.rank(), count, type),
                                           shared = group.allocate(count, torch::TensorOptions(type));
                             if (shared.count_nonzero().item<int64_t>() != 0) FAIL("allocate gives zeros");
                             shared.copy_(mine);
                             group.all_reduce_sum(mine, "the test's numbers");
                             group.all_reduce_sum(shared, "the test's numbers");
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
            pending.push_back(group.start_all_reduce_sum(tensors.back(), "sum"));
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
  group.all_reduce_sum(tensor, "t");
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
                           std::this_thread::sleep_for(std::chrono::milliseconds(1000));
                           return;
                         }
                         torch::Tensor tensor = torch::ones({10});
                         group.all_reduce_sum(tensor, "gradient bucket 3");
                       },
                       {.backend = backend, .timeout_seconds = 0.3});
    } catch (const Error& error) {
      text = error.what();
      CHECK(error.code() == ErrorCode::kEnvironment);
    }
    CHECK(text.find("gradient bucket 3") != std::string::npos);
    CHECK(text.find("rank 0 of 2") != std::string::npos);
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
  }
}

TEST_CASE("reduce-scatter and all-gather under way, all-reduce with any reduction, messages") {
  for (const char* backend : {"shm", "gloo", "shm+gloo"})
    run_thread_ranks(3,
                     [&](Group& group) {
                       const int rank = group.rank();
                       if (group.backend_name().substr(0, 3) != std::string(backend).substr(0, 3)) FAIL(group.backend_name());
                       torch::Tensor wide = group.allocate(3 * 1001, torch::kFloat), piece = torch::zeros({1001});
                       wide.copy_(torch::arange(3 * 1001) * (rank + 1));
                       auto scattered = group.start_reduce_scatter_sum(piece, wide, "gradients");
                       torch::Tensor all = torch::zeros({3 * 1001});
                       scattered->wait();
                       if (!torch::equal(piece, torch::arange(1001 * rank, 1001 * (rank + 1)) * 6.0f)) FAIL("reduce-scatter");
                       auto gathered = group.start_all_gather(all, piece, "weights");
                       gathered->wait();
                       if (!torch::equal(all, torch::arange(3 * 1001) * 6.0f)) FAIL("all-gather");
                       // In place, from its own block and (copied) from another one; the sum's slice in its input.
                       all.narrow(0, 1001 * rank, 1001).fill_(rank);
                       group.start_all_gather(all, all.narrow(0, 1001 * rank, 1001), "weights")->wait();
                       group.start_reduce_scatter_sum(all.narrow(0, 0, 1001), all, "in place")->wait();
                       if (!all.narrow(0, 0, 1001).eq(3.0 * rank).all().item<bool>()) FAIL("in place");

                       torch::Tensor number = torch::full({4}, rank + 1, torch::kLong);
                       group.all_reduce(number, Reduction::kMax, "the largest");
                       if (!number.eq(3).all().item<bool>()) FAIL("maximum");
                       const torch::Tensor empty = torch::empty({0});
                       group.all_reduce(empty, Reduction::kSum, "nothing");

                       torch::Tensor sent = torch::full({70000}, rank + 1.0f), received = torch::zeros({70000});
                       if (rank == 0) group.send(sent, 1, 5, "activations");
                       if (rank == 1 && group.receive(received, 0, 5, "activations") != 0) FAIL("source");
                       if (rank == 1 && !received.eq(1).all().item<bool>()) FAIL("message");
                       if (rank == 1) CHECK_THROWS_WITH_AS(group.send(sent, 1, 5, "x"), doctest::Contains("not another rank"), Error);
                       group.barrier();
                       if (group.ranks_of_my_host() != std::vector<int>{0, 1, 2} || group.num_hosts() != 1) FAIL("hosts");
                       if (recent_calls(group).find("reduce-scatter") == std::string::npos) FAIL(recent_calls(group));
                     },
                     {.backend = backend, .timeout_seconds = 20});
}

TEST_CASE("groups are split, again and again, and exchange at the same time as their parent") {
  for (const char* backend : {"auto", "gloo"})
    run_thread_ranks(
        4,
        [&](Group& group) {
          const int rank = group.rank();
          for (int round = 0; round < 2; ++round) {
            const std::vector<int> mine = rank % 2 ? std::vector<int>{3, 1} : std::vector<int>{0, 2};
            Group pair = group.split(mine, rank % 2 ? "odd" : "even");
            if (pair.size() != 2 || mine[static_cast<size_t>(pair.rank())] != rank || pair.backend_name() != group.backend_name())
              FAIL("pair");
            torch::Tensor whole = group.allocate(3000, torch::kFloat).fill_(rank), half = pair.allocate(2000, torch::kFloat).fill_(rank);
            auto sum = group.start_all_reduce_sum(whole, "whole"), half_sum = pair.start_all_reduce_sum(half, "half");
            sum->wait();
            half_sum->wait();
            if (!whole.eq(6).all().item<bool>() || !half.eq(rank % 2 ? 4 : 2).all().item<bool>()) FAIL("sums");
          }
          if (rank < 3) {
            Group three = group.split({0, 1, 2}, "three");
            if (three.all_gather_text(std::to_string(rank), "names") != std::vector<std::string>{"0", "1", "2"}) FAIL("texts");
          }
          if (group.split({rank}, "self").size() != 1) FAIL("self");
          std::string text;
          try {
            group.split({(rank + 1) % 4}, "not mine");
          } catch (const Error& error) {
            text = error.what();
          }
          if (text.find("not one of its ranks") == std::string::npos) FAIL(text);
        },
        {.backend = backend, .timeout_seconds = 20});
}

TEST_CASE("c10d's own code runs on a group, of one rank too") {
  const auto use = [](const Group& group) {
    const auto process_group = group.process_group();
    std::vector<torch::Tensor> tensors{torch::full({3}, 2.0f)};
    process_group->allreduce(tensors)->wait();
    std::vector<std::vector<torch::Tensor>> outputs(1);
    for (int rank = 0; rank < group.size(); ++rank) outputs[0].push_back(torch::zeros({3}));
    process_group->allgather(outputs, tensors)->wait();
    return tensors[0].eq(2.0 * group.size()).all().item<bool>() && torch::equal(outputs[0].back(), tensors[0]) &&
           group.c10d_backend()->getSize() == group.size();
  };
  CHECK(use(Group()));
  run_thread_ranks(2, [&](Group& group) {
    if (!use(group)) FAIL("c10d");
  });
}

TEST_CASE("a sum that is not waited for still takes place, or ends the group when an exception passes") {
  run_thread_ranks(2, [](Group& group) {
    torch::Tensor sum = torch::ones({100000});
    group.start_all_reduce_sum(sum, "dropped");
    if (!sum.eq(2).all().item<bool>()) FAIL("dropped");
    std::string text;
    try {
      const auto pending = group.start_all_reduce_sum(sum, "abandoned");
      throw std::runtime_error("the model failed");
    } catch (const std::runtime_error& error) {
      text = error.what();
    }
    if (text != "the model failed") FAIL(text);
    try {
      group.barrier();
      text = "";
    } catch (const Error& error) {
      text = error.what();
    }
    if (text.find("closed") == std::string::npos) FAIL(text);
  });
}

TEST_CASE("a forked child has no part in its parent's group, which goes on") {
  for (const char* backend : {"shm", "gloo"})
    run_thread_ranks(2,
                     [](Group& group) {
                       torch::Tensor sum = torch::ones({4});
                       group.all_reduce_sum(sum, "before");
                       const pid_t child = group.rank() == 0 ? ::fork() : 1;
                       if (child == 0) {
                         int num_told = 0;
                         for (const bool waits : {false, true}) {
                           try {
                             if (waits) group.broadcast(sum, 0, "the child's own");
                             else group.all_reduce_sum(sum, "the child's own");
                           } catch (const Error& error) {
                             num_told += std::string(error.what()).find("'the child's own': process ") == 0;
                           }
                         }
                         ::_exit(num_told);
                       }
                       int status = 0;
                       if (group.rank() == 0 && (::waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 2))
                         FAIL("the child exchanged");
                       group.all_reduce_sum(sum, "after");
                       if (sum[0].item<float>() != 4) FAIL(sum[0].item<float>());
                     },
                     {.backend = backend});
}

TEST_CASE("an unknown backend is refused") {
  CHECK_THROWS_WITH_AS(run_thread_ranks(2, [](Group&) {}, {.backend = "carrier-pigeon"}), doctest::Contains("carrier-pigeon"), Error);
}

}  // namespace
}  // namespace cohort
