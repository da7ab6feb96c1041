#include "cohort/parallel/join.h"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <atomic>
#include <thread>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/parallel/common/parameters.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/threads.h"

using namespace cohort;

namespace {

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr}, sometimes{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  explicit NetImpl(bool with_norm) {
    const SeededDraws draws(3);
    first = register_module("first", torch::nn::Linear(4, 6));
    second = register_module("second", torch::nn::Linear(6, 1));
    sometimes = register_module("sometimes", torch::nn::Linear(6, 1));
    if (with_norm) norm = register_module("norm", torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(6).momentum(0.5)));
  }
  torch::Tensor forward(const torch::Tensor& x, int step) {
    torch::Tensor h = torch::tanh(first(x));
    if (norm) norm(h);  // For its statistics alone: the output would make gradients depend on how samples are grouped.
    return step % 2 ? second(h) + sometimes(h) : second(h);
  }
};
TORCH_MODULE(Net);

/// Samples of `rank` in its `step`-th batch: as many as differ from rank to rank and step to step.
torch::Tensor samples_of(int rank, int step) {
  const SeededDraws draws(static_cast<int64_t>(random_bits(5, rank, step) >> 2));
  return torch::randn({1 + (rank + step) % 3, 4});
}

torch::Tensor loss_of(Net& net, const torch::Tensor& x, int step) { return (net->forward(x, step) - x.sum(1, true)).square().mean(); }

torch::optim::SGD optimizer_of(Net& net) { return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9)); }

/// One process that takes the batches of all ranks that have one.
std::vector<torch::Tensor> one_process(const std::vector<int>& counts, int epochs) {
  Net net(false);
  torch::optim::SGD optimizer = optimizer_of(net);
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (int step = 0;; ++step) {
      std::vector<torch::Tensor> batches;
      for (size_t rank = 0; rank < counts.size(); ++rank)
        if (step < counts[rank]) batches.push_back(samples_of(static_cast<int>(rank), step));
      if (batches.empty()) break;
      optimizer.zero_grad();
      loss_of(net, torch::cat(batches), step).backward();
      optimizer.step();
    }
  }
  return net->parameters();
}

void train_uneven(const std::vector<int>& counts, GradientMean mean, int epochs) {
  const std::vector<torch::Tensor> expected = one_process(counts, epochs);
  const int longest = *std::max_element(counts.begin(), counts.end());
  run_thread_ranks(static_cast<int>(counts.size()), [&](Group& group) {
    Net net(false);
    DataParallel parallel(*net, group, {.mean = mean, .bucket_bytes = 64, .first_bucket_bytes = 16});
    torch::optim::SGD optimizer = optimizer_of(net);
    Join join(*net, parallel);
    for (int epoch = 0; epoch < epochs; ++epoch) {
      const int count = counts[static_cast<size_t>(group.rank())];
      for (int step = 0; step < count; ++step) {
        const torch::Tensor x = samples_of(group.rank(), step);
        const JointStep joint = join.step(x.size(0));
        int with_data = 0;
        for (const int other : counts) with_data += step < other;
        if (joint.num_ranks != with_data) FAIL(concat("step ", step, ": ", joint.num_ranks, " ranks, expected ", with_data));
        optimizer.zero_grad();
        torch::Tensor loss = loss_of(net, x, step);
        if (mean == GradientMean::kSum) loss = loss * (static_cast<double>(x.size(0)) / static_cast<double>(joint.num_samples));
        loss.backward();
        optimizer.step();
      }
      const int64_t for_others = join.finish([&] { optimizer.step(); });
      if (for_others != longest - count) FAIL(concat(for_others, " steps for others, expected ", longest - count));
    }
    const std::vector<torch::Tensor> found = net->parameters();
    for (size_t i = 0; i < found.size(); ++i)
      if (!torch::allclose(found[i], expected[i], 1e-5, 1e-6)) FAIL(concat("rank ", group.rank(), ": parameter ", i, " differs"));
  });
}

}  // namespace

TEST_CASE("join: uneven ranks train as one process does with all samples") {
  torch::set_num_threads(1);
  for (const GradientMean mean : {GradientMean::kSamples, GradientMean::kSum}) {
    train_uneven({5, 3, 0, 7}, mean, 2);
    train_uneven({0, 4}, mean, 1);  // Rank 0, whose order of gradients the others follow, has none.
    train_uneven({2, 2, 2}, mean, 2);
    train_uneven({0, 0}, mean, 2);
    train_uneven({3}, mean, 1);
  }
}

TEST_CASE("join: statistics of batch norm are those of the ranks that have data, on all ranks") {
  const std::vector<int> counts = {2, 0, 3};
  std::vector<torch::Tensor> means(counts.size());
  run_thread_ranks(3, [&](Group& group) {
    Net net(true);
    DataParallel parallel(*net, group, {.mean = GradientMean::kSamples});
    Join join(*net, parallel);
    for (int step = 0; step < counts[static_cast<size_t>(group.rank())]; ++step) {
      join.step(2);
      net->zero_grad();
      loss_of(net, torch::full({2, 4}, step + 1.0).mul(torch::tensor({{1.0}, {2.0}})), step).backward();
    }
    join.finish([] {});
    means[static_cast<size_t>(group.rank())] = net->norm->running_mean.clone();
  });
  // All ranks with data saw the same numbers, so one process with rank 2's data has the same statistics.
  Net alone(true);
  for (int step = 0; step < 3; ++step) loss_of(alone, torch::full({2, 4}, step + 1.0).mul(torch::tensor({{1.0}, {2.0}})), step);
  for (const torch::Tensor& mean : means) CHECK(torch::allclose(mean, alone->norm->running_mean, 1e-5, 1e-6));
}

TEST_CASE("join: a mean over ranks and a step without samples are refused; a rank that never finishes is not waited for without end") {
  Net net(false);
  Group alone;
  DataParallel parallel(*net, alone, {.mean = GradientMean::kSamples});
  std::string refusal;
  try {
    Net other(false);
    DataParallel over_ranks(*other, alone);  // kRanks, unless said otherwise.
    const Join join(*other, over_ranks);
  } catch (const Error& error) {
    refusal = error.what();
    CHECK(error.code() == ErrorCode::kBadInput);
  }
  CHECK(refusal.find("GradientMean::kSamples") != std::string::npos);
  CHECK_THROWS_WITH_AS(Join(*net, parallel).step(0), "Join: a step of 0 samples; a rank without data calls finish()", Error);
  std::atomic<bool> ended = false;
  const auto one_leaves = [&] {
    run_thread_ranks(2,
                     [&](Group& group) {
                       Net own(false);
                       DataParallel own_parallel(*own, group, {.mean = GradientMean::kSamples});
                       if (group.rank() == 0) Join(*own, own_parallel).finish([] {});
                       while (group.rank() == 1 && !ended) std::this_thread::sleep_for(std::chrono::milliseconds(5));
                     },
                     {.backend = "auto", .timeout_seconds = 0.3});
  };
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    ended = true;
  });
  try {
    one_leaves();
    FAIL("rank 0 did not notice");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kEnvironment);
    CHECK(std::string(error.what()).find("which ranks still have data") != std::string::npos);
  }
  later.join();
}
