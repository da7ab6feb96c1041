#include "cohort/parallel/strategy/data_parallel.h"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <functional>

#include "cohort/base/fail.h"
#include "cohort/parallel/common/parameters.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/threads.h"

namespace cohort {
namespace {

namespace nn = torch::nn;

/// Everything awkward in one model: a tied weight, a parameter used twice, a frozen one, an empty one, two types, and a branch that only
/// some samples use.
struct AwkwardImpl : nn::Module {
  nn::Linear first{nullptr}, second{nullptr}, branch{nullptr}, never{nullptr};
  torch::Tensor empty, frozen, twice, precise;

  explicit AwkwardImpl(uint64_t seed) {
    const SeededDraws draws(seed);
    first = register_module("first", nn::Linear(6, 5));
    second = register_module("second", nn::Linear(5, 6));
    second->weight.detach().copy_(first->weight.detach().t());
    branch = register_module("branch", nn::Linear(5, 5));
    never = register_module("never", nn::Linear(3, 3));
    empty = register_parameter("empty", torch::empty({0, 4}));
    frozen = register_parameter("frozen", torch::randn({5}), /*requires_grad=*/false);
    twice = register_parameter("twice", torch::randn({5}));
    precise = register_parameter("precise", torch::randn({6}, torch::kDouble));
    register_parameter("alias_of_twice", twice);
  }
  torch::Tensor forward(const torch::Tensor& x, bool with_branch) {
    torch::Tensor h = torch::tanh(first(x) * twice + frozen);
    if (with_branch) h = h + branch(h);
    h = second(h * twice) + x.matmul(first->weight.t()).matmul(first->weight) + empty.sum();
    return h * precise.to(torch::kFloat);
  }
};
TORCH_MODULE(Awkward);

torch::Tensor samples(int64_t count, uint64_t seed) {
  const SeededDraws draws(seed);
  return torch::randn({count, 6});
}

std::map<std::string, torch::Tensor> gradients(nn::Module& module) {
  std::map<std::string, torch::Tensor> out;
  for (const NamedTensor& parameter : distinct_parameters(module))
    out[parameter.name] = parameter.tensor.grad().defined() ? parameter.tensor.grad().clone() : torch::Tensor();
  return out;
}

void check_equal(const std::map<std::string, torch::Tensor>& found, const std::map<std::string, torch::Tensor>& expected,
                 const std::string& where) {
  for (const auto& [name, gradient] : expected) {
    const torch::Tensor& mine = found.at(name);
    if (mine.defined() != gradient.defined()) FAIL(concat(where, ": ", name, mine.defined() ? " has a gradient" : " has no gradient"));
    if (gradient.defined() && !torch::allclose(mine, gradient, 1e-5, 1e-6))
      FAIL(concat(where, ": ", name, " differs by ", (mine - gradient).abs().max().item<double>()));
  }
}

/// Rows of rank `rank` when 12 rows are divided 7, 4, 1, 0 (uneven, one empty) or equally.
std::pair<int64_t, int64_t> rows_of(int rank, int num_ranks, bool uneven) {
  if (!uneven) return {12 / num_ranks * rank, 12 / num_ranks};
  const int64_t counts[] = {7, 4, 1, 0};
  int64_t begin = 0;
  for (int r = 0; r < rank; ++r) begin += counts[r];
  return {begin, rank + 1 == num_ranks ? 12 - begin : counts[rank]};
}

TEST_CASE("gradients of an awkward model equal one process, step after step, for each mean and uneven batches") {
  for (const GradientMean mean : {GradientMean::kRanks, GradientMean::kSamples, GradientMean::kSum}) {
    for (const int num_ranks : {2, 3, 4}) {
      const bool uneven = mean != GradientMean::kRanks;
      // The branch is used by no rank in step 1, by all in step 2, by rank 0 only in step 3.
      const auto with_branch = [](int step, int rank) { return step == 2 || (step == 3 && rank == 0); };
      std::vector<std::map<std::string, torch::Tensor>> expected;
      for (int step = 1; step <= 3; ++step) {
        Awkward model(5);
        const torch::Tensor all = samples(12, step);
        torch::Tensor loss = torch::zeros({});
        for (int rank = 0; rank < num_ranks; ++rank) {
          const auto [begin, count] = rows_of(rank, num_ranks, uneven);
          if (count > 0) loss = loss + model->forward(all.narrow(0, begin, count), with_branch(step, rank)).pow(2).mean(1).sum() / 12.0;
        }
        loss.backward();
        expected.push_back(gradients(*model));
      }
      run_thread_ranks(num_ranks, [&](Group& group) {
        Awkward model(group.rank() == 0 ? 5 : 77 + group.rank());  // Another seed on each rank: the broadcast makes them equal.
        DataParallel parallel(*model, group, {.mean = mean, .bucket_bytes = 128, .first_bucket_bytes = 64});
        for (int step = 1; step <= 3; ++step) {
          model->zero_grad();
          const torch::Tensor all = samples(12, step);
          const auto [begin, count] = rows_of(group.rank(), num_ranks, uneven);
          parallel.set_local_samples(count);
          parallel.set_control(1, static_cast<float>(group.rank() + step));
          if (count == 0) {
            parallel.exchange_without_backward();
          } else {
            torch::Tensor loss = model->forward(all.narrow(0, begin, count), with_branch(step, group.rank())).pow(2).mean(1);
            loss = mean == GradientMean::kSum ? loss.sum() / 12.0 : loss.mean();
            loss.backward();
          }
          check_equal(gradients(*model), expected[step - 1],
                      concat("mean ", static_cast<int>(mean), ", ", num_ranks, " ranks, rank ", group.rank(), ", step ", step));
          if (parallel.control_sum(1) != num_ranks * (num_ranks - 1) / 2 + num_ranks * step) FAIL("control_sum");
        }
      });
    }
  }
}

TEST_CASE("accumulated gradients are exchanged once, also those that only an earlier micro-step made") {
  Awkward reference(5);
  const torch::Tensor all = samples(12, 1);
  torch::Tensor loss = torch::zeros({});
  for (int piece = 0; piece < 4; ++piece)
    loss = loss + reference->forward(all.narrow(0, 3 * piece, 3), piece % 2 == 0).pow(2).mean(1).sum() / 12.0;
  loss.backward();
  const auto expected = gradients(*reference);
  run_thread_ranks(2, [&](Group& group) {
    Awkward model(5);
    DataParallel parallel(*model, group, {.mean = GradientMean::kSum, .bucket_bytes = 128, .first_bucket_bytes = 64});
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      const auto micro_loss = [&](int piece) {
        return model->forward(all.narrow(0, 6 * group.rank() + 3 * piece, 3), piece == 0).pow(2).mean(1).sum() / 12.0;
      };
      {
        NoSync micro(parallel);
        micro_loss(0).backward();
      }
      micro_loss(1).backward();
      check_equal(gradients(*model), expected, concat("rank ", group.rank(), " step ", step));
    }
  });
}

TEST_CASE("sparse gradients arrive dense") {
  nn::Embedding reference(nn::EmbeddingOptions(8, 3).sparse(false));
  const torch::Tensor ids = torch::tensor({1, 3, 3, 7});
  reference(ids).pow(2).sum().backward();
  run_thread_ranks(2, [&](Group& group) {
    nn::Embedding model(nn::EmbeddingOptions(8, 3).sparse(true));
    model->weight.detach().copy_(reference->weight.detach());
    DataParallel parallel(*model, group, {.mean = GradientMean::kSum});
    model(ids.narrow(0, 2 * group.rank(), 2)).pow(2).sum().backward();
    if (!torch::allclose(model->weight.grad(), reference->weight.grad())) FAIL("sparse gradient");
  });
}

TEST_CASE("ranks with different models are named before anything is exchanged") {
  const auto run = [](const std::function<nn::Sequential(int)>& build) -> std::string {
    try {
      run_thread_ranks(3, [&](Group& group) {
        nn::Sequential model = build(group.rank());
        DataParallel parallel(*model, group);
      });
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kFailed);
      return error.what();
    }
    return "";
  };
  const std::string shape = run([](int rank) { return nn::Sequential(nn::Linear(4, 4), nn::Linear(4, rank == 1 ? 3 : 2)); });
  CHECK(shape.find("rank 1 has '1.weight Float [3, 4]") != std::string::npos);
  const std::string missing =
      run([](int rank) { return rank == 2 ? nn::Sequential(nn::Linear(4, 4)) : nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 2)); });
  CHECK(missing.find("rank 2 has nothing") != std::string::npos);
}

TEST_CASE("a second gradient after the exchange is refused with the parameter's name") {
  run_thread_ranks(2, [](Group& group) {
    nn::Linear model(3, 2);
    DataParallel parallel(*model, group);
    const torch::Tensor x = torch::ones({4, 3}), inner = model(x).sum();
    std::string text;
    // A hook on the output that runs another backward gives each parameter two gradients within one backward().
    torch::Tensor outer = model(x).sum();
    outer.register_hook([&](const torch::Tensor&) { inner.backward(); });
    try {
      outer.backward();
    } catch (const std::exception& error) {
      text = error.what();
    }
    if (!text.empty() && text.find("weight") == std::string::npos && text.find("bias") == std::string::npos) FAIL(text);
  });
}

TEST_CASE("a model is in one DataParallel at a time, and free again afterwards") {
  run_thread_ranks(2, [](Group& group) {
    nn::Linear model(2, 2);
    {
      DataParallel parallel(*model, group);
      bool refused = false;
      try {
        DataParallel second(*model, group);
      } catch (const Error&) {
        refused = true;
      }
      if (!refused) FAIL("a second DataParallel was accepted");
    }
    DataParallel again(*model, group);
    model(torch::ones({1, 2})).sum().backward();
  });
}

TEST_CASE("running statistics become their average by share of the samples") {
  run_thread_ranks(2, [](Group& group) {
    nn::BatchNorm1d model(3);
    DataParallel parallel(*model, group, {.mean = GradientMean::kSamples});
    const int64_t count = group.rank() == 0 ? 6 : 2;
    parallel.set_local_samples(count);
    model(torch::full({count, 3}, group.rank() == 0 ? 1.0f : 5.0f)).sum().backward();
    // 0.9 x 0 + 0.1 x (6 x 1 + 2 x 5) / 8
    if (!torch::allclose(model->running_mean, torch::full({3}, 0.2f))) FAIL("running_mean");
  });
}

TEST_CASE("LibTorch's own optimizers and zero_grad work on exchanged gradients") {
  for (const bool set_to_none : {true, false}) {
    run_thread_ranks(2, [&](Group& group) {
      nn::Linear model(3, 1);
      DataParallel parallel(*model, group);
      torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      for (int step = 0; step < 4; ++step) {
        optimizer.zero_grad(set_to_none);
        model(torch::ones({2, 3}) * (group.rank() + 1)).pow(2).mean().backward();
        optimizer.step();
      }
      at::Tensor gathered = torch::empty({2, 3});
      group.all_gather(gathered, model->weight.detach().reshape({3}).contiguous(), "weights");
      if (!torch::equal(gathered[0], gathered[1])) FAIL("ranks drifted apart");
    });
  }
}

}  // namespace
}  // namespace cohort
