// What programs do with gradients of the weights' shapes, beside the training of the weights.
#include <doctest/doctest.h>
#include <torch/torch.h>

#include <functional>

#include "cohort/base/fail.h"
#include "cohort/parallel/shared_weights/shared_data_parallel.h"
#include "cohort/parallel/strategy/replicated.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/threads.h"

namespace cohort {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

constexpr int64_t kUnits = 64, kRows = 64;  // As many, so that derivatives by activations have the size of a weight.
constexpr int kRanks = 2, kSteps = 5;

nn::Sequential make_net(uint64_t seed) {
  const SeededDraws draws(seed);
  return nn::Sequential(nn::Linear(8, kUnits), nn::Tanh(), nn::Linear(kUnits, kUnits), nn::Tanh(), nn::Linear(kUnits, kUnits), nn::Tanh(),
                        nn::Linear(kUnits, 1));
}

/// Further models of a rank, besides the net that all ranks train.
struct Own {
  nn::Sequential other = make_net(2);
  torch::optim::SGD optimizer{other->parameters(), 0.05};
  std::vector<Tensor> kept, copies;

  void keep(const Tensor& tensor) {
    kept.push_back(tensor);
    copies.push_back(tensor.detach().clone());
  }
};

struct Use {
  const char* name;
  std::function<void(nn::Sequential& net, Own& own, Tensor x, const Tensor& y)> backward;
};

Tensor loss_of(nn::Sequential& net, const Tensor& x, const Tensor& y) { return torch::mse_loss(net->forward(x), y); }

const std::vector<Use>& uses() {
  static const std::vector<Use> all{
      {"a target that nobody detached, after the net",
       [](nn::Sequential& net, Own& own, const Tensor& x, const Tensor& y) {
         const Tensor value = net->forward(x);
         torch::mse_loss(value, own.other->forward(x) + y).backward();
       }},
      {"such a target, before the net",
       [](nn::Sequential& net, Own& own, const Tensor& x, const Tensor& y) {
         const Tensor target = own.other->forward(x) + y;
         torch::mse_loss(net->forward(x), target).backward();
       }},
      {"two nets, one loss",
       [](nn::Sequential& net, Own& own, const Tensor& x, const Tensor& y) {
         own.optimizer.zero_grad();
         (loss_of(net, x, y) + loss_of(own.other, x, y)).backward();
         own.optimizer.step();
       }},
      {"a second network is trained first, and its gradients are zeroed every few steps",
       [](nn::Sequential& net, Own& own, const Tensor& x, const Tensor& y) {
         loss_of(own.other, x, y).backward();
         if (own.kept.size() % 2) own.optimizer.step(), own.optimizer.zero_grad();
         own.keep(x);
         loss_of(net, x, y).backward();
       }},
      {"gradients by autograd::grad, kept for ever",
       [](nn::Sequential& net, Own& own, const Tensor& x, const Tensor& y) {
         for (const Tensor& gradient : torch::autograd::grad({loss_of(net, x, y)}, net->parameters())) own.keep(gradient);
         loss_of(net, x, y).backward();
       }},
      {"gradients in .grad, kept for ever",
       [](nn::Sequential& net, Own& own, const Tensor& x, const Tensor& y) {
         std::vector<Tensor> before;  // In one process that takes two ranks' rows in turn they add up.
         for (const Tensor& parameter : net->parameters())
           before.push_back(parameter.grad().defined() ? parameter.grad().clone() : Tensor());
         net->zero_grad();
         loss_of(net, x, y).backward();
         size_t i = 0;
         for (Tensor& parameter : net->parameters()) {
           own.keep(parameter.grad());
           if (before[i].defined()) parameter.mutable_grad() = before[i] + parameter.grad();
           ++i;
         }
       }},
      {"a loss of gradients, as in meta-learning",
       [](nn::Sequential& net, Own& /*own*/, const Tensor& x, const Tensor& y) {
         Tensor penalty = torch::zeros({});
         for (const Tensor& gradient : torch::autograd::grad({loss_of(net, x, y)}, net->parameters(), {}, true, true))
           penalty = penalty + gradient.square().sum();
         (loss_of(net, x, y) + 0.01 * penalty).backward();
       }},
      {"a loss of derivatives, its graph kept",
       [](nn::Sequential& net, Own& own, Tensor x, const Tensor& y) {
         x = x.clone().set_requires_grad(true);
         const Tensor slope = torch::autograd::grad({net->forward(x).sum()}, {x}, {}, true, true)[0];
         const Tensor loss = (slope - y).square().mean();
         loss.backward({}, /*keep_graph=*/true);
         own.kept = {loss, slope}, own.copies = {loss.detach().clone(), slope.detach().clone()};
       }},
      {"derivatives by activations, kept for ever",
       [](nn::Sequential& net, Own& own, const Tensor& x, const Tensor& y) {
         Tensor h = net[0]->as<nn::Linear>()->forward(x).tanh();
         const Tensor first = h, second = net[2]->as<nn::Linear>()->forward(h);
         first.retain_grad(), second.retain_grad();
         h = net[4]->as<nn::Linear>()->forward(second.tanh()).tanh();
         torch::mse_loss(net[6]->as<nn::Linear>()->forward(h), y).backward();
         own.keep(first.grad()), own.keep(second.grad());
       }},
  };
  return all;
}

Tensor rows_of(int step, int rank, int64_t columns) {
  const SeededDraws draws(static_cast<uint64_t>(100 * step + 10 * columns + rank));
  return torch::randn({kRows, columns});
}

void work(const Use& use, nn::Sequential& net, Own& own, int step, int rank) {
  use.backward(net, own, rows_of(step, rank, 8), rows_of(step, rank, 1));
}

void check_kept(const Use& use, const Own& own) {
  for (size_t i = 0; i < own.kept.size(); ++i)
    if (!torch::equal(own.kept[i].detach(), own.copies[i])) FAIL(concat(use.name, ": what was kept has changed, ", i));
}

/// Parameters after some steps of one process that takes the rows of all ranks in turn.
std::vector<Tensor> one_process(const Use& use, double clip_norm) {
  nn::Sequential net = make_net(1);
  std::vector<Own> own(kRanks);
  Replicated strategy(*net, Group(), UpdateRule{});
  for (int step = 0; step < kSteps; ++step) {
    strategy.zero_grad();
    for (int rank = 0; rank < kRanks; ++rank) work(use, net, own[static_cast<size_t>(rank)], step, rank);
    strategy.step({.learning_rate = 0.05, .clip_norm = clip_norm});
  }
  return net->parameters();
}

TEST_CASE("shared weights train as one process does, whatever else has gradients of the weights' shapes") {
  for (const Use& use : uses())
    for (const double clip_norm : {0.0, 0.5}) {
      const std::vector<Tensor> expected = one_process(use, clip_norm);
      run_thread_ranks(kRanks, [&](Group& group) {
        nn::Sequential net = make_net(1);
        Own own;
        SharedDataParallel strategy(*net, group, {});
        for (int step = 0; step < kSteps; ++step) {
          strategy.zero_grad();
          work(use, net, own, step, group.rank());
          strategy.finish_backward();
          strategy.step({.learning_rate = 0.05, .clip_norm = clip_norm});
        }
        check_kept(use, own);
        const std::vector<Tensor> found = net->parameters();
        for (size_t i = 0; i < expected.size(); ++i)
          if (clip_norm == 0 ? !torch::equal(found[i], expected[i]) : !torch::allclose(found[i], expected[i], 1e-5, 1e-6))
            FAIL(concat(use.name, ", clip_norm ", clip_norm, ": parameter ", i, " differs by ",
                        (found[i] - expected[i]).abs().max().item<double>()));
        group.barrier();
      });
    }
}

}  // namespace
}  // namespace cohort
