#include "cohort/parallel/shared_weights/shared_data_parallel.h"
#include "cohort/comm/group_internals.h"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <mutex>

#include "cohort/base/fail.h"
#include "cohort/comm/shm/shm_arena.h"
#include "cohort/parallel/strategy/replicated.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/threads.h"

namespace cohort {
namespace {

namespace nn = torch::nn;

/// Tied, frozen, unused, empty and small parameters, two types, a branch that not every rank uses, a weight whose gradient is expanded.
struct MixedImpl : nn::Module {
  nn::Linear first{nullptr}, second{nullptr}, branch{nullptr}, never{nullptr};
  torch::Tensor empty, frozen, precise, flat;

  MixedImpl() {
    const SeededDraws draws(3);
    first = register_module("first", nn::Linear(40, 48));
    second = register_module("second", nn::Linear(48, 40));
    branch = register_module("branch", nn::Linear(48, 48));
    never = register_module("never", nn::Linear(3, 3));
    empty = register_parameter("empty", torch::empty({0, 4}));
    frozen = register_parameter("frozen", torch::randn({48}), /*requires_grad=*/false);
    precise = register_parameter("precise", torch::randn({40}, torch::kDouble));
    flat = register_parameter("flat", torch::randn({50, 40}));
  }
  torch::Tensor forward(const torch::Tensor& x, bool with_branch) {
    torch::Tensor h = torch::tanh(first(x) + frozen);
    if (with_branch) h = h + branch(h);
    h = second(h) + x.matmul(first->weight.t()).matmul(first->weight) + empty.sum() + 1e-3 * flat.sum();
    return h * precise.to(torch::kFloat);
  }
};
TORCH_MODULE(Mixed);

torch::Tensor samples(int64_t step) {
  const SeededDraws draws(100 + static_cast<uint64_t>(step));
  return torch::randn({12, 40});
}

struct Case {
  UpdateRule::Kind kind = UpdateRule::Kind::kMomentum;
  double clip_norm = 0;
  bool uneven = false;
  int accumulate = 1;
};

/// Rows of a rank: 7, 4, 1, 0 where uneven.
std::pair<int64_t, int64_t> rows_of(int rank, int num_ranks, bool uneven) {
  if (!uneven) return {12 / num_ranks * rank, 12 / num_ranks};
  const int64_t counts[] = {7, 4, 1, 0};
  int64_t begin = 0;
  for (int r = 0; r < rank; ++r) begin += counts[r];
  return {begin, rank + 1 == num_ranks ? 12 - begin : counts[rank]};
}

torch::Tensor loss_of(Mixed& model, const torch::Tensor& rows, bool with_branch) {
  return model->forward(rows, with_branch).pow(2).mean(1).sum() / 12.0;
}

UpdateRule rule_of(const Case& c) {
  UpdateRule rule;
  rule.kind = c.kind;
  rule.weight_decay = 0.01;
  return rule;
}

constexpr int kSteps = 4;

/// Parameters after some steps of one process that takes the rows of all ranks in turn.
std::vector<torch::Tensor> one_process(const Case& c, int num_ranks) {
  Mixed model;
  Replicated strategy(*model, Group(), rule_of(c));
  for (int step = 0; step < kSteps; ++step) {
    strategy.zero_grad();
    const torch::Tensor all = samples(step);
    for (int rank = 0; rank < num_ranks; ++rank) {
      const auto [begin, count] = rows_of(rank, num_ranks, c.uneven);
      if (count > 0) loss_of(model, all.narrow(0, begin, count), step == 2 && rank == 0).backward();
    }
    strategy.step({.learning_rate = 0.05, .clip_norm = c.clip_norm});
  }
  std::vector<torch::Tensor> out;
  for (const torch::Tensor& parameter : model->parameters()) out.push_back(parameter.detach().clone());
  return out;
}

void check_case(const Case& c, int num_ranks) {
  const std::vector<torch::Tensor> expected = one_process(c, num_ranks);
  run_thread_ranks(num_ranks, [&](Group& group) {
    Mixed model;
    SharedDataParallel strategy(*model, group, {.rule = rule_of(c)});
    for (int step = 0; step < kSteps; ++step) {
      strategy.zero_grad();
      strategy.set_control(1, static_cast<float>(group.rank() + step));
      const torch::Tensor all = samples(step);
      const auto [begin, count] = rows_of(group.rank(), num_ranks, c.uneven);
      for (int piece = 0; piece < c.accumulate && count > 0; ++piece)
        loss_of(model, all.narrow(0, begin + piece * count / c.accumulate, count / c.accumulate), step == 2 && group.rank() == 0)
            .backward();
      if (count == 0) strategy.exchange_without_backward();
      strategy.finish_backward();
      if (strategy.control_sum(1) != num_ranks * (num_ranks - 1) / 2 + num_ranks * step) FAIL("control_sum");
      const StepOutcome outcome = strategy.step({.learning_rate = 0.05, .clip_norm = c.clip_norm});
      if (outcome.skipped || (c.clip_norm > 0 && outcome.gradient_norm <= 0)) FAIL("outcome");
    }
    const std::vector<torch::Tensor> found = model->parameters();
    for (size_t i = 0; i < expected.size(); ++i) {
      const bool bitwise = c.clip_norm == 0 && c.accumulate == 1;
      const bool same =
          bitwise ? torch::equal(found[i].detach(), expected[i]) : torch::allclose(found[i].detach(), expected[i], 1e-5, 1e-6);
      if (!same)
        FAIL(concat("parameter ", i, " of rank ", group.rank(), " of ", num_ranks, " differs by ",
                    (found[i].detach() - expected[i]).abs().max().item<double>(), ", kind ", static_cast<int>(c.kind)));
    }
  });
}

TEST_CASE("shared weights train as one process that takes the ranks' rows in turn: bitwise without clipping") {
  for (const int num_ranks : {2, 3, 4})
    for (const UpdateRule::Kind kind : {UpdateRule::Kind::kSgd, UpdateRule::Kind::kMomentum, UpdateRule::Kind::kAdamW})
      check_case({.kind = kind, .uneven = num_ranks != 3}, num_ranks);
  check_case({.kind = UpdateRule::Kind::kAdam, .clip_norm = 0.05}, 2);
  check_case({.clip_norm = 0.05, .uneven = true}, 4);
  check_case({.accumulate = 3}, 2);
}

TEST_CASE("all ranks read the same memory, and a gradient of a page or more is not copied") {
  run_thread_ranks(2, [](Group& group) {
    Mixed model;
    SharedDataParallel strategy(*model, group, {});
    strategy.zero_grad();
    loss_of(model, samples(0), false).backward();
    size_t offset;
    if (!GroupInternals::arena(group)->offset_of(model->second->weight.grad().data_ptr(), model->second->weight.grad().nbytes(), &offset))
      FAIL("the gradient of second.weight lies in private memory");
    const void* const gradient = model->second->weight.grad().data_ptr();
    strategy.finish_backward();
    if (model->second->weight.grad().data_ptr() != gradient) FAIL("the gradient was copied");
    strategy.step({.learning_rate = 0.1});
    if (group.rank() == 1) model->first->weight.detach().fill_(7);
    group.barrier();
    if (model->first->weight.min().item<float>() != 7) FAIL("two copies");
    group.barrier();
  });
}

TEST_CASE("a frozen parameter that was made in InferenceMode, and so has no count of writes, trains along") {
  run_thread_ranks(2, [](Group& group) {
    Mixed model;
    {
      const c10::InferenceMode guard;
      model->frozen.set_data(torch::ones({48}));
    }
    SharedDataParallel strategy(*model, group, {});
    for (int step = 0; step < 2; ++step) {
      strategy.zero_grad();
      loss_of(model, samples(step), false).backward();
      strategy.finish_backward();
      strategy.step({.learning_rate = 0.1});
    }
    if (!torch::equal(model->frozen.detach(), torch::ones({48}))) FAIL("frozen was changed");
  });
}

TEST_CASE("a gradient that is not finite on one rank skips the update on all") {
  run_thread_ranks(3, [](Group& group) {
    Mixed model;
    SharedDataParallel strategy(*model, group, {});
    const torch::Tensor before = model->first->weight.detach().clone();
    group.barrier();
    for (const bool bad : {true, false}) {
      strategy.zero_grad();
      torch::Tensor loss = loss_of(model, samples(0), false);
      if (bad && group.rank() == 1) loss = loss * std::numeric_limits<float>::infinity();
      loss.backward();
      if (strategy.step({.learning_rate = 0.1, .check_finite = true}).skipped != bad) FAIL("skipped");
      if (torch::equal(before, model->first->weight.detach()) != bad) FAIL("weights");
      group.barrier();
    }
  });
}

TEST_CASE("each element is saved by exactly one rank, and what one layout saves another loads") {
  std::map<std::string, torch::Tensor> saved;
  std::mutex mutex;
  const Case c{.kind = UpdateRule::Kind::kAdam};
  const auto train_steps = [&](Mixed& model, Strategy& strategy, int first, int rank, int num_ranks) {
    for (int step = first; step < first + 2; ++step) {
      strategy.zero_grad();
      const auto [begin, count] = rows_of(rank, num_ranks, false);
      loss_of(model, samples(step).narrow(0, begin, count), false).backward();
      strategy.step({.learning_rate = 0.05});
    }
  };
  std::vector<torch::Tensor> undisturbed;
  run_thread_ranks(3, [&](Group& group) {
    Mixed model;
    SharedDataParallel strategy(*model, group, {.rule = rule_of(c)});
    train_steps(model, strategy, 0, group.rank(), 3);
    {
      const std::lock_guard<std::mutex> lock(mutex);
      for (const FlatPiece& piece : strategy.saved_pieces()) {
        torch::Tensor& whole = saved[piece.name];
        if (!whole.defined()) whole = torch::full(piece.shape, std::nan(""), piece.values.options()).flatten();
        torch::Tensor place = whole.narrow(0, piece.begin, piece.values.numel());
        if (!place.isnan().all().item<bool>()) FAIL(concat(piece.name, " is saved twice"));
        place.copy_(piece.values);
      }
    }
    group.barrier();
    train_steps(model, strategy, 2, group.rank(), 3);
    if (group.rank() == 0)
      for (const torch::Tensor& parameter : model->parameters()) undisturbed.push_back(parameter.detach().clone());
  });
  for (const auto& [name, whole] : saved) CHECK_MESSAGE(!whole.isnan().any().item<bool>(), name);
  CHECK(saved.contains("model/empty"));
  run_thread_ranks(2, [&](Group& group) {
    Mixed model;
    SharedDataParallel strategy(*model, group, {.rule = rule_of(c)});
    torch::NoGradGuard no_grad;
    for (FlatPiece& piece : strategy.loaded_pieces()) piece.values.copy_(saved.at(piece.name).narrow(0, piece.begin, piece.values.numel()));
    strategy.loaded();
    torch::AutoGradMode grad(true);
    train_steps(model, strategy, 2, group.rank(), 2);
    const std::vector<torch::Tensor> found = model->parameters();
    for (size_t i = 0; i < found.size(); ++i)
      if (!torch::allclose(found[i].detach(), undisturbed[i], 1e-5, 1e-6)) FAIL(concat("parameter ", i));
  });
}

}  // namespace
}  // namespace cohort
