#pragma once
// What the programs of the torture tests train: data that all threads draw alike, a small net, and its twin that sees the whole batch.

#include <ATen/CPUGeneratorImpl.h>
#include <sys/mman.h>
#include <torch/torch.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>

#include "cohort/base/fail.h"
#include "cohort/parallel/strategy/data_parallel.h"
#include "cohort/session/parallel.h"
#include "tests/support/threads.h"
#include "tests/support/torture.h"

namespace cohort::torture {

namespace nn = torch::nn;
using at::Tensor;

/// The same numbers in every thread: LibTorch's generator is the process's.
inline Tensor draw(at::IntArrayRef shape, uint64_t seed, at::ScalarType type = at::kDouble) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kDouble)).to(type);
}

/// From -2 to 2: sums and halves of them are exact.
inline Tensor draw_whole(at::IntArrayRef shape, uint64_t seed, at::ScalarType type = at::kFloat) {
  return draw(shape, seed).mul(2).round().clamp(-2, 2).to(type);
}

inline void fill(nn::Module& module, uint64_t seed) {
  at::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters())
    item.value().copy_(draw(item.value().sizes(), seed++).mul(0.4).to(item.value().scalar_type()));
}

/// This rank's rows, as many as every rank's.
inline Tensor rows_of(const Group& group, const Tensor& whole) {
  const int64_t count = whole.size(0) / group.size();
  return whole.narrow(0, count * group.rank(), count);
}

inline void expect_equal(const Tensor& found, const Tensor& expected, const std::string& what, double tolerance = 1e-9) {
  expect(found.defined() == expected.defined(), what + (found.defined() ? " is there" : " is not there"));
  if (!found.defined() || (found.scalar_type() == expected.scalar_type() && at::equal(found, expected))) return;
  expect(found.sizes() == expected.sizes() && found.scalar_type() == expected.scalar_type(), what + " has another shape or type");
  const double off = (found - expected).abs().max().item<double>(), size = expected.abs().max().item<double>();
  expect(off <= tolerance * size, concat(what, " is off by ", off, " at a size of ", size));
}

inline double tolerance_of(const Tensor& tensor) { return tensor.scalar_type() == at::kDouble ? 1e-9 : 1e-6; }

/// Parameters, or their gradients.
inline void expect_same(const nn::Module& found, const nn::Module& expected, bool gradients, const std::string& where) {
  const auto mine = found.named_parameters(), theirs = expected.named_parameters();
  expect(mine.size() == theirs.size(), where + ": numbers of parameters");
  for (size_t i = 0; i < mine.size(); ++i) {
    const Tensor &a = mine[i].value(), &b = theirs[i].value();
    if (gradients) expect_equal(a.grad(), b.grad(), concat(where, ", gradient of ", mine[i].key()), tolerance_of(b));
    else expect_equal(a.detach(), b.detach(), concat(where, ", ", mine[i].key()), tolerance_of(b));
  }
}

/// Three layers, and one that a program may add.
struct NetImpl : nn::Module {
  nn::Linear first{nullptr}, second{nullptr}, head{nullptr};
  Tensor extra;
  explicit NetImpl(uint64_t seed = 1, at::ScalarType type = at::kDouble) {
    first = register_module("first", nn::Linear(6, 8));
    second = register_module("second", nn::Linear(8, 8));
    head = register_module("head", nn::Linear(8, 3));
    to(type);
    fill(*this, seed);
  }
  Tensor forward(const Tensor& x) {
    Tensor h = at::tanh(second(at::tanh(first(x))));
    if (extra.defined()) h = h * extra;
    return head(h);
  }
  void add_extra(const Tensor& values) { extra = register_parameter("extra", values); }
  void set_trained(nn::Module& part, bool on) {
    for (Tensor& parameter : part.parameters()) parameter.set_requires_grad(on);
  }
};
TORCH_MODULE(Net);

inline Tensor inputs(int64_t step, at::ScalarType type = at::kDouble) { return draw({12, 6}, static_cast<uint64_t>(1000 + step), type); }
inline Tensor loss_of(Net& net, const Tensor& x) { return net->forward(x).square().mean(); }

inline DataParallelOptions small_buckets(GradientMean mean = GradientMean::kRanks) {
  return {.mean = mean, .bucket_bytes = 512, .first_bucket_bytes = 256};
}

/// A model that is, or will be, under data parallelism, and one that sees the whole batch.
struct Pair {
  Group group;
  Net mine, whole;
  std::unique_ptr<torch::optim::SGD> mine_optimizer, whole_optimizer;

  explicit Pair(const Group& group, uint64_t seed = 1, at::ScalarType type = at::kDouble)
      : group(group), mine(seed, type), whole(seed, type) {
    renew_optimizers();
  }
  void renew_optimizers() {
    const auto options = torch::optim::SGDOptions(0.125).momentum(0.5);
    mine_optimizer = std::make_unique<torch::optim::SGD>(mine->parameters(), options);
    whole_optimizer = std::make_unique<torch::optim::SGD>(whole->parameters(), options);
  }
  template <typename Change>
  void each(const Change& change) {
    change(mine), change(whole);
  }
  void backward(int64_t step) {
    const Tensor x = inputs(step, mine->first->weight.scalar_type());
    loss_of(mine, rows_of(group, x)).backward();
    loss_of(whole, x).backward();
  }
  void zero_grad(bool set_to_none = true) { mine_optimizer->zero_grad(set_to_none), whole_optimizer->zero_grad(set_to_none); }
  void step(int64_t step, bool set_to_none = true) {
    zero_grad(set_to_none);
    backward(step);
    check(concat("step ", step));
    apply();
  }
  void apply() { mine_optimizer->step(), whole_optimizer->step(); }
  void check(const std::string& where) const {
    expect_same(*mine, *whole, /*gradients=*/true, where);
    expect_same(*mine, *whole, /*gradients=*/false, where);
  }
};

struct WrappedPair : Pair {
  explicit WrappedPair(const Group& group, const DataParallelOptions& options = small_buckets())
      : Pair(group), parallel(*mine, group, options) {}
  DataParallel parallel;
};

/// A program of a pair that is wrapped as it begins.
inline std::function<void(Group&)> with_pair(const std::function<void(WrappedPair&)>& body) {
  return [body](Group& group) {
    WrappedPair pair(group);
    body(pair);
  };
}

/// A file in memory where the ranks of one case meet.
struct Meeting {
  const int file = ::memfd_create("torture", 0);
  ~Meeting() { ::close(file); }
};

inline Case session_case(const std::string& name, const std::function<void(Session&)>& program, const std::string& error = "",
                         int num_ranks = 2, double timeout_seconds = 30) {
  const auto meeting = std::make_shared<Meeting>();
  const auto body = [=](Group& group) {
    World world{.rank = group.rank(), .size = group.size(), .local_rank = group.rank(), .local_size = group.size()};
    world.launcher = "cohort", world.host = "here", world.store_fd = meeting->file;
    Session session(world, {.timeout_seconds = timeout_seconds});
    program(session);
  };
  return {name, body, error, num_ranks};
}

/// A Net in Parallel and its twin in one process, with optimizers of the program's or, where a layout is given, one of Parallel's.
struct Twins {
  explicit Twins(Session& session, const std::string& layout = "torch", double rate = 0.125)
      : session(session),
        is_ours(layout != "torch"),
        parallel(*mine, session,
                 is_ours ? ParallelOptions{.layout = layout, .optimizer = torch::optim::SGDOptions(rate)} : ParallelOptions{}),
        a(mine->parameters(), rate),
        b(whole->parameters(), rate) {}

  void backward(const Tensor& x) { loss_of(mine, session.local(x)).backward(), loss_of(whole, x).backward(); }
  StepOutcome step_mine(const StepSettings& settings = {}) { return is_ours ? parallel.step(settings) : parallel.step(a, settings); }
  void step_whole() { b.step(), b.zero_grad(); }
  void step() { step_mine(), step_whole(); }
  void check(const std::string& where) {
    parallel.gather_weights();
    expect_same(*mine, *whole, /*gradients=*/false, where);
    parallel.release_weights();
  }

  Session& session;
  const bool is_ours;
  Net mine, whole;
  Parallel parallel;
  torch::optim::SGD a, b;
};

inline Tensor batch(int64_t rows, int64_t step) { return draw({rows, 6}, static_cast<uint64_t>(70 * step + rows)); }

}  // namespace cohort::torture
