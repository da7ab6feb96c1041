// Compressed exchange under a loss scale: nothing that is kept from step to step is in it.
#include <doctest/doctest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <map>

#include "cohort/base/fail.h"
#include "cohort/parallel/make_strategy.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/threads.h"

namespace cohort {
namespace {

namespace nn = torch::nn;

const std::vector<std::string> kSpecs = {"fp16", "bf16", "int8", "topk:0.05", "powersgd:2"};
constexpr int64_t kSteps = 8;

using Saved = std::map<std::string, torch::Tensor>;

struct Training {
  std::string spec;
  std::vector<double> scales = std::vector<double>(kSteps, 1);  ///< One a step.
  int64_t overflows_in = -1;                                    ///< Step in which rank 1's gradient is infinite.
  bool leaves_out = false;                                      ///< That step is not tried at all.
  int64_t restarts_before = -1;                                 ///< Step before which a new strategy reads what the old one saved.
  double clip_norm = 0;
};

nn::Sequential build() {
  const SeededDraws draws(4);
  return nn::Sequential(nn::Linear(20, 64), nn::Tanh(), nn::Linear(64, 64), nn::Tanh(), nn::Linear(64, 3));
}

torch::Tensor rows(int64_t step, int rank) {
  const SeededDraws draws(static_cast<uint64_t>(7 + 100 * step + rank));
  return torch::randn({8, 20});
}

Saved pieces_of(Strategy& strategy) {
  Saved saved;
  for (const FlatPiece& piece : strategy.saved_pieces()) saved[piece.name] = piece.values.clone();
  return saved;
}

void check_same(const Saved& found, const Saved& expected, const std::string& where) {
  if (found.size() != expected.size()) FAIL(where);
  bool has_residual = false;
  for (const auto& [name, values] : expected) {
    has_residual |= name.find("residual") != std::string::npos && values.count_nonzero().item<int64_t>() > 0;
    if (!torch::equal(found.at(name), values)) FAIL(concat(where, ": ", name, " differs"));
  }
  if (!has_residual) FAIL(concat(where, ": nothing was left out, so nothing is tested"));
}

/// What each rank would save after the training.
std::vector<Saved> train(const Training& training, int num_ranks = 3) {
  std::vector<Saved> all(static_cast<size_t>(num_ranks));
  run_thread_ranks(num_ranks, [&](Group& group) {
    const StrategyOptions options{
        .rule = {.kind = UpdateRule::Kind::kMomentum}, .compress = training.spec, .share_weights = false, .bucket_bytes = 8192};
    nn::Sequential model = build();
    auto strategy = make_strategy(*model, group, options);
    for (int64_t step = 0; step < kSteps; ++step) {
      if (step == training.restarts_before) {
        const Saved kept = pieces_of(*strategy);
        strategy.reset();
        model = build();
        strategy = make_strategy(*model, group, options);
        for (FlatPiece& piece : strategy->loaded_pieces()) {
          // Rank 0 saves what is the same on all ranks.
          at::Tensor values = kept.contains(piece.name) ? kept.at(piece.name) : at::empty_like(piece.values);
          if (piece.name.find("residual") == std::string::npos) group.broadcast(values, 0, piece.name);
          piece.values.copy_(values);
        }
        strategy->loaded();
      }
      const bool overflows = step == training.overflows_in;
      if (overflows && training.leaves_out) continue;
      const double scale = training.scales[static_cast<size_t>(step)];
      strategy->zero_grad();
      strategy->set_gradient_factor(1 / scale);
      torch::Tensor loss = model->forward(rows(step, group.rank())).pow(2).sum() * scale;
      if (overflows && group.rank() == 1) loss = loss * std::numeric_limits<float>::infinity();
      const Saved before = overflows ? pieces_of(*strategy) : Saved();
      loss.backward();
      strategy->finish_backward();
      const StepOutcome outcome = strategy->step({.learning_rate = 0.001, .clip_norm = training.clip_norm, .check_finite = true});
      if (outcome.skipped != overflows) FAIL(concat(training.spec, ": step ", step, " skipped: ", outcome.skipped));
      if (overflows) check_same(pieces_of(*strategy), before, concat(training.spec, ", rank ", group.rank(), ", a skipped step"));
    }
    all[static_cast<size_t>(group.rank())] = pieces_of(*strategy);
  });
  return all;
}

void check_same(const std::vector<Saved>& found, const std::vector<Saved>& expected, const std::string& where) {
  for (size_t rank = 0; rank < expected.size(); ++rank) check_same(found[rank], expected[rank], concat(where, ", rank ", rank));
}

TEST_CASE("compression under a loss scale: the same bits with any power of two, also where it changes on the way") {
  for (const std::string& spec : kSpecs)
    for (const double clip_norm : {0.0, 2.0}) {
      CAPTURE(spec);
      const std::vector<Saved> plain = train({.spec = spec, .clip_norm = clip_norm});
      check_same(train({.spec = spec, .scales = std::vector<double>(kSteps, 1024), .clip_norm = clip_norm}), plain, spec + " with 1024");
      check_same(train({.spec = spec, .scales = {65536, 65536, 32768, 32768, 0.25, 0.25, 1024, 2048}, .clip_norm = clip_norm}), plain,
                 spec + " with changing scales");
    }
}

TEST_CASE("compression: an overflow on one rank is skipped on all, and what compression keeps is as before the step") {
  for (const std::string& spec : kSpecs) {
    CAPTURE(spec);
    const std::vector<double> scales(kSteps, 1024);
    const std::vector<Saved> skipped = train({.spec = spec, .scales = scales, .overflows_in = 3});
    check_same(skipped, train({.spec = spec, .scales = scales, .overflows_in = 3, .leaves_out = true}), spec);
  }
}

TEST_CASE("compression under a loss scale: a training that goes on from what was saved, with another scale") {
  for (const std::string& spec : kSpecs) {
    CAPTURE(spec);
    check_same(train({.spec = spec, .scales = {1024, 1024, 1024, 1024, 64, 64, 64, 64}, .restarts_before = 4}), train({.spec = spec}),
               spec);
  }
}

/// What is above 65504 in fp32 is no overflow of the step: halves are clamped, and the rest follows.
TEST_CASE("compress=fp16: an unscaled gradient beyond the range of halves is applied over several steps, none of them skipped") {
  run_thread_ranks(2, [](Group& group) {
    nn::Linear model(nn::LinearOptions(1, 1).bias(false));
    model->weight.detach().zero_();
    const auto strategy = make_strategy(*model, group, {.compress = "fp16", .share_weights = false});
    for (int step = 0; step < 6; ++step) {
      strategy->zero_grad();
      strategy->set_gradient_factor(1.0 / 1024);
      (model(torch::ones({1, 1})).sum() * (step == 0 ? 1024 * 3e5 : 0)).backward();
      if (strategy->step({.learning_rate = 1, .check_finite = true}).skipped) FAIL("skipped");
    }
    if (model->weight.item<double>() != -6e5) FAIL(model->weight.item<double>());
  });
}

}  // namespace
}  // namespace cohort
