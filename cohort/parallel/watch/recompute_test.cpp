// recompute() (models/graph/recompute.h) under every strategy: the training is the one without it, bit for bit.

#include "cohort/models/graph/recompute.h"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <memory>

#include "cohort/base/fail.h"
#include "cohort/parallel/batch_norm/convert_sync_batch_norm.h"
#include "cohort/parallel/shared_weights/shared_data_parallel.h"
#include "cohort/parallel/strategy/data_parallel.h"
#include "cohort/parallel/zero/zero_data_parallel.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/threads.h"

namespace cohort {
namespace {

namespace nn = torch::nn;
using Tensors = std::vector<at::Tensor>;

/// A table whose rows are the output layer's weights too, blocks, and a branch that only some ranks use.
struct NetImpl : nn::Module {
  nn::Embedding table{nullptr};
  std::vector<nn::Linear> blocks;
  nn::Linear branch{nullptr};
  bool recomputed;

  explicit NetImpl(bool recomputed_) : recomputed(recomputed_) {
    const SeededDraws draws(3);
    table = register_module("table", nn::Embedding(20, 24));
    for (int i = 0; i < 4; ++i) blocks.push_back(register_module(concat("block", i), nn::Linear(24, 24)));
    branch = register_module("branch", nn::Linear(24, 24));
  }
  at::Tensor layer(const std::function<at::Tensor(const at::Tensor&)>& function, const at::Tensor& x) {
    return recomputed ? recompute(function, x) : function(x);
  }
  at::Tensor forward(const at::Tensor& ids, bool with_branch) {
    at::Tensor x = layer([this](const at::Tensor& t) { return table(t); }, ids);
    for (nn::Linear& block : blocks) x = layer([&block](const at::Tensor& t) { return t + block(t).tanh(); }, x);
    if (with_branch) x = layer([this](const at::Tensor& t) { return branch(t).sin(); }, x);
    return layer([this](const at::Tensor& t) { return at::linear(t, table->weight).tanh(); }, x);
  }
};
TORCH_MODULE(Net);

at::Tensor ids_of(int step, int rank) { return torch::arange(6).mul(7 * (step + 1)).add(3 * rank).remainder(20).view({2, 3}); }

/// 0 branch on no rank, 1 on all, 2 on rank 0, and again.
bool with_branch(int step, int rank) { return step % 3 == 1 || (step % 3 == 2 && rank == 0); }

at::Tensor loss_of(Net& net, int step, int rank) { return net->forward(ids_of(step, rank), with_branch(step, rank)).square().sum() / 4; }

Tensors values(const Tensors& tensors) {
  Tensors copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.defined() ? tensor.detach().clone() : at::Tensor());
  return copies;
}

void check_equal(const Tensors& found, const Tensors& expected, const std::string& where) {
  if (found.size() != expected.size()) FAIL(where);
  for (size_t i = 0; i < found.size(); ++i)
    if (found[i].defined() != expected[i].defined() || (found[i].defined() && !at::equal(found[i], expected[i])))
      FAIL(concat(where, ": tensor ", i, " differs"));
}

TEST_CASE("DataParallel: gradients of every step, accumulation included, and one exchange each") {
  run_thread_ranks(2, [](Group& group) {
    Tensors found[2];
    for (const bool recomputed : {false, true}) {
      Net net(recomputed);
      DataParallel parallel(*net, group, {.mean = GradientMean::kSum, .bucket_bytes = 2048, .first_bucket_bytes = 1024});
      for (int step = 0; step < 4; ++step) {
        net->zero_grad();
        parallel.set_control(0, 1);
        if (step == 3) {
          const NoSync micro(parallel);
          loss_of(net, 7, group.rank()).backward();
        }
        loss_of(net, step, group.rank()).backward();
        if (parallel.control_sum(0) != 2) FAIL("control_sum");
        for (const at::Tensor& parameter : net->parameters())
          found[recomputed].push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
      }
    }
    check_equal(found[1], found[0], concat("rank ", group.rank()));
  });
}

std::unique_ptr<Strategy> make(int stage, nn::Module& module, Group& group) {
  const UpdateRule rule{.kind = UpdateRule::Kind::kAdamW};
  if (stage == 0) return std::make_unique<SharedDataParallel>(module, group, SharedDataParallelOptions{.rule = rule});
  return std::make_unique<ZeroDataParallel>(module, group, ZeroOptions{.stage = stage, .rule = rule, .bucket_bytes = 3000});
}

TEST_CASE("SharedDataParallel and ZeRO 1 to 3: weights after every step, accumulation and clipping included") {
  for (const int stage : {0, 1, 2, 3}) {
    run_thread_ranks(2, [&](Group& group) {
      Tensors found[2];
      for (const bool recomputed : {false, true}) {
        Net net(recomputed);
        const std::unique_ptr<Strategy> strategy = make(stage, *net, group);
        for (int step = 0; step < 4; ++step) {
          strategy->zero_grad();
          if (step == 3) {
            strategy->set_sync(false);
            loss_of(net, 7, group.rank()).backward();
          }
          strategy->set_sync(true);
          loss_of(net, step, group.rank()).backward();
          strategy->finish_backward();
          strategy->step({.learning_rate = 0.01, .clip_norm = 0.5});
          strategy->gather_weights();
          for (const at::Tensor& weight : values(net->parameters())) found[recomputed].push_back(weight);
          strategy->release_weights();
        }
        group.barrier();  // The other rank still reads.
      }
      check_equal(found[1], found[0], concat("stage ", stage, ", rank ", group.rank()));
    });
  }
}

TEST_CASE("synchronised batch norm: outputs, gradients, and statistics that move once, with the module given or not") {
  run_thread_ranks(2, [](Group& group) {
    Tensors found[3];
    for (const int way : {0, 1, 2}) {
      nn::BatchNorm2d norm(3);
      const std::shared_ptr<nn::Module> owner = norm.ptr();
      convert_sync_batch_norm(*owner, group);
      for (int step = 0; step < 2; ++step) {
        at::Tensor x = torch::arange(24.0 * (group.rank() + 1)).sin().view({-1, 3, 2, 2}).to(at::kFloat).requires_grad_();
        const auto forward = [&](const at::Tensor& t) { return norm(t); };
        const at::Tensor y = way == 0 ? forward(x) : recompute(forward, x, way == 1 ? owner.get() : nullptr);
        (y * y.cos()).sum().backward();
        for (const at::Tensor& one :
             {y.detach(), x.grad(), norm->weight.grad().clone(), norm->running_mean.clone(), norm->running_var.clone()})
          found[way].push_back(one);
      }
    }
    check_equal(found[1], found[0], concat("with the module, rank ", group.rank()));
    check_equal(found[2], found[0], concat("without, rank ", group.rank()));
  });
}

}  // namespace
}  // namespace cohort
