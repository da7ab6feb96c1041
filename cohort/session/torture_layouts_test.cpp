// Optimizers of LibTorch and of ours, in every layout, and checkpoints from one to another.
#include <cmath>
#include <filesystem>

#include "cohort/base/fail.h"
#include "cohort/models/layers/dropout.h"
#include "tests/support/torture_models.h"

namespace cohort {
namespace {

using namespace torture;  // NOLINT
namespace optim = torch::optim;

template <typename Optimizer, typename Options>
void with_optimizer(Session& session, const Options& options, int64_t rows = 7, double clip = 0) {
  Net mine, whole;
  Parallel parallel(*mine, session);
  Optimizer a(mine->parameters(), options), b(whole->parameters(), options);
  for (int step = 0; step < 4; ++step) {
    const Tensor x = batch(rows, step);
    const Tensor mine_loss = loss_of(mine, session.local(x)), loss = loss_of(whole, x);
    mine_loss.backward(), loss.backward();
    expect_same(*mine, *whole, true, concat("step ", step));
    expect_equal(session.mean(mine_loss), loss.detach(), "loss");
    parallel.step(a, {.clip_norm = clip});
    if (clip > 0) nn::utils::clip_grad_norm_(whole->parameters(), clip);
    b.step(), b.zero_grad();
    expect_same(*mine, *whole, false, concat("step ", step));
  }
}

/// A schedule of LibTorch's for an optimizer of ours: one of LibTorch's that trains nothing carries the rate (the guide's program).
void on_a_plateau(Session& session, const std::string& layout) {
  const auto make = [] {
    nn::Sequential net(nn::Linear(6, 8), nn::Tanh(), nn::Linear(8, 3));
    net->to(at::kDouble), fill(*net, 5);
    return net;
  };
  auto mine = make(), whole = make();
  const auto loss_of_output = [](const Tensor& output, const Tensor& target) { return (output - target).square().mean(); };
  Parallel parallel(*mine, session, {.layout = layout, .optimizer = optim::SGDOptions(0.5), .example = batch(6, 90)});
  optim::SGD carrier({at::zeros({1})}, optim::SGDOptions(0.5)), optimizer(whole->parameters(), optim::SGDOptions(0.5));
  using Schedule = optim::ReduceLROnPlateauScheduler;
  Schedule schedule(carrier, Schedule::max, 0.5F, 0),
      whole_schedule(optimizer, Schedule::max, 0.5F, 0);  // The loss falls, so the rate does.
  for (int step = 0; step < 6; ++step) {
    const Tensor x = batch(6, step), y = at::zeros({6, 3}, at::kDouble), loss = loss_of_output(whole->forward(x), y);
    const double found = parallel.forward_backward(session.local(x), session.local(y), loss_of_output);
    expect_equal(at::full({}, found, at::kDouble), loss.detach(), concat(layout, ", loss of step ", step));
    loss.backward();
    schedule.step(static_cast<float>(found)), whole_schedule.step(loss.item<float>());
    parallel.set_learning_rate(carrier.param_groups()[0].options().get_lr());
    expect(parallel.learning_rate() == optimizer.param_groups()[0].options().get_lr(), "rate");
    parallel.step(), optimizer.step(), optimizer.zero_grad();
  }
  expect(parallel.learning_rate() < 0.5, "the rate falls");
}

/// Ours, in a layout, against LibTorch's in one process.
void in_layout(Session& session, const std::string& layout, int64_t rows, double clip = 0) {
  Net mine, whole;
  Parallel parallel(*mine, session, {.layout = layout, .optimizer = optim::AdamWOptions(0.03).eps(1e-3)});
  optim::AdamW optimizer(whole->parameters(), optim::AdamWOptions(0.03).eps(1e-3));
  for (int step = 0; step < 4; ++step) {
    const Tensor x = batch(rows, step);
    loss_of(mine, session.local(x)).backward(), loss_of(whole, x).backward();
    const double rate = 0.03 / (step + 1);
    parallel.set_learning_rate(rate);
    static_cast<optim::AdamWOptions&>(optimizer.param_groups()[0].options()).lr(rate);
    if (clip > 0) nn::utils::clip_grad_norm_(whole->parameters(), clip);
    parallel.step({.clip_norm = clip});
    optimizer.step(), optimizer.zero_grad();
    parallel.gather_weights();
    expect_same(*mine, *whole, false, concat(layout, ", step ", step));
    parallel.release_weights();
  }
}

/// Rank 1 cannot make step 1: an exception in its forward. All drop the step and train on as if it had not been.
void leave_a_step(Session& session, const std::string& layout) {
  Twins twins(session, layout);
  const auto step_of_all = [&](int step) {
    const Tensor local = session.local(batch(6, step));
    if (step == 1 && session.rank() == 1) throw std::runtime_error("the test's own");
    loss_of(twins.mine, local).backward();
    twins.step_mine();
  };
  for (int step = 0; step < 4; ++step) {
    try {
      step_of_all(step);
    } catch (const std::exception& error) {
      expect(step == 1, concat("step ", step, ": ", error.what()));
      if (session.rank() == 0) expect(std::string(error.what()).find("rank 1 left this step") == 0, error.what());
      twins.parallel.abandon_step();
    }
    if (step != 1) loss_of(twins.whole, batch(6, step)).backward(), twins.step_whole();
    twins.check(concat(layout, ", step ", step));
  }
}

std::vector<Case> cases_of_left_steps() {
  std::vector<Case> cases;
  for (const std::string layout : {"torch", "dp", "zero=1", "zero=2", "zero=3"})
    cases.push_back(session_case("a step that one rank leaves, " + layout, [layout](Session& session) { leave_a_step(session, layout); }));
  return cases;
}

/// Two steps in one layout, two more from its checkpoint in another: four of one process.
void change_layout(Session& session, const std::string& from, const std::string& to) {
  const auto options = optim::AdamOptions(0.03).eps(1e-3);
  const std::string folder = session.group().all_gather_text(
      (std::filesystem::temp_directory_path() / concat("cohort-torture-", ::getpid(), "-", from, "-", to)).string(), "folder")[0];
  if (session.is_first()) std::filesystem::remove_all(folder);
  session.barrier();
  Net whole;
  optim::Adam one(whole->parameters(), options);
  for (int part = 0; part < 2; ++part) {
    const std::string& layout = part == 0 ? from : to;
    const bool ours = layout != "torch";
    Net mine(part == 0 ? 1 : 33 + session.rank());
    Parallel parallel(*mine, session, ours ? ParallelOptions{.layout = layout, .optimizer = options} : ParallelOptions{});
    optim::Adam own(mine->parameters(), options);
    if (part == 1) expect(parallel.load(folder, ours ? nullptr : &own) == 2, "the step loaded");
    for (int step = 2 * part; step < 2 * part + 2; ++step) {
      const Tensor x = batch(7, step);
      loss_of(mine, session.local(x)).backward(), loss_of(whole, x).backward();
      if (ours) parallel.step();
      else parallel.step(own);
      one.step(), one.zero_grad();
      parallel.gather_weights();
      expect_same(*mine, *whole, false, concat(from, " to ", to, ", step ", step));
      parallel.release_weights();
    }
    if (part == 0) parallel.save(folder, 2, ours ? nullptr : &own);
  }
  session.barrier();
  if (session.is_first()) std::filesystem::remove_all(folder);
}

/// A run that goes on under another layout draws the masks of cohort::Dropout that the run in one piece draws.
void go_on_with_dropout(Session& session, const std::string& layout) {
  const std::string folder = session.group().all_gather_text(
      (std::filesystem::temp_directory_path() / concat("cohort-torture-", ::getpid(), "-dropout-", layout)).string(), "folder")[0];
  if (session.is_first()) std::filesystem::remove_all(folder);
  session.barrier();
  const auto make = [] {
    nn::Sequential net(nn::Linear(6, 8), Dropout(0.5, 1), nn::Linear(8, 4));
    net->to(at::kDouble);
    fill(*net, 1);
    return net;
  };
  const auto options = optim::SGDOptions(0.1);
  const auto step_of = [&](Parallel& parallel, int step) {
    parallel.forward_backward(session.local(batch(8, step)), session.local(draw({8, 4}, static_cast<uint64_t>(step))),
                              [](const Tensor& out, const Tensor& y) { return (out - y).square().mean(); });
    parallel.step();
  };
  auto whole = make(), first = make(), second = make();
  Parallel straight(*whole, session, {.layout = "zero=1,dp=2", .optimizer = options});
  for (int step = 0; step < 4; ++step) step_of(straight, step);
  Parallel before(*first, session, {.layout = "zero=1,dp=2", .optimizer = options});
  for (int step = 0; step < 2; ++step) step_of(before, step);
  before.save(folder, 7);  // The program's own count.
  Parallel after(*second, session, {.layout = layout, .optimizer = options});
  expect(after.load(folder) == 7, "the step loaded");
  for (int step = 2; step < 4; ++step) step_of(after, step);
  after.gather_weights();
  expect_same(*second, *whole, false, "dropout, " + layout);
  after.release_weights();
  session.barrier();
  if (session.is_first()) std::filesystem::remove_all(folder);
}

std::vector<Case> cases_of_optimizers() {
  std::vector<Case> cases = {
      session_case("Adagrad", [](Session& session) { with_optimizer<optim::Adagrad>(session, optim::AdagradOptions(0.05).eps(1e-3)); }),
      session_case("RMSprop", [](Session& session) { with_optimizer<optim::RMSprop>(session, optim::RMSpropOptions(0.05).eps(1e-3)); }),
      session_case("Adam with amsgrad",
                   [](Session& session) { with_optimizer<optim::Adam>(session, optim::AdamOptions(0.05).amsgrad(true).eps(1e-3)); }),
      session_case(
          "clipped", [](Session& session) { with_optimizer<optim::SGD>(session, optim::SGDOptions(0.125), 7, 0.05); }, "", 3),
      session_case("LBFGS",
                   [](Session& session) {
                     Net mine, whole;
                     Parallel parallel(*mine, session);
                     const auto options = optim::LBFGSOptions(0.5).max_iter(5);
                     optim::LBFGS a(mine->parameters(), options), b(whole->parameters(), options);
                     for (int step = 0; step < 3; ++step) {
                       const Tensor x = batch(7, step), local = session.local(x);
                       const auto closure = [](optim::LBFGS& optimizer, Net& net, const Tensor& rows) {
                         optimizer.zero_grad();
                         Tensor loss = loss_of(net, rows);
                         loss.backward();
                         return loss;
                       };
                       parallel.step(a, [&] { return closure(a, mine, local); });
                       b.step([&] { return closure(b, whole, x); });
                       expect_same(*mine, *whole, false, concat("step ", step));
                     }
                   }),
      session_case("StepLR",
                   [](Session& session) {
                     Twins twins(session);
                     optim::StepLR mine_rate(twins.a, 2, 0.5), rate(twins.b, 2, 0.5);
                     for (int step = 0; step < 6; ++step) {
                       twins.backward(batch(5, step));
                       twins.step();
                       mine_rate.step(), rate.step();
                       twins.check(concat("step ", step));
                     }
                   }),
      session_case(
          "RMSprop saved",
          [](Session& session) {
            Net net;
            Parallel parallel(*net, session);
            optim::RMSprop optimizer(net->parameters(), 0.01);
            const auto folder = std::filesystem::temp_directory_path() / concat("cohort-torture-", ::getpid(), "-none");
            must_fail("checkpoints of Parallel hold the state of SGD, Adam and AdamW", [&] { parallel.save(folder, 1, &optimizer); });
            expect(!std::filesystem::exists(folder), "no folder is left behind");
            parallel.save(folder, 1, &optimizer);
          },
          "checkpoints of Parallel hold the state of SGD, Adam and AdamW"),
      session_case(
          "ZeRO without options of the optimizer",
          [](Session& session) {
            Net net;
            Parallel parallel(*net, session, {.layout = "zero=1"});
          },
          "and LBFGS, whose closure computes the loss several times a step) go with layout dp"),
      session_case(
          "step() without an optimizer",
          [](Session& session) {
            Net net;
            Parallel parallel(*net, session);
            parallel.step();
          },
          "no optimizer was given to Parallel"),
      session_case(
          "ZeRO with compression",
          [](Session& session) {
            Net net;
            Parallel parallel(*net, session, {.layout = "zero=2", .optimizer = optim::SGDOptions(0.1), .compress = "bf16"});
          },
          "zero=2 with compress=bf16"),
      session_case("an exception in the middle of backward() on one rank",
                   [](Session& session) {
                     Twins twins(session);
                     for (int step = 0; step < 4; ++step) {
                       const Tensor x = batch(7, step);
                       if (step == 1) {
                         must_fail(session.rank() == 1 ? "the program's own" : "rank 1 left this step", [&] {
                           const Tensor h = twins.mine->second(twins.mine->first(session.local(x)));
                           if (session.rank() == 1)
                             h.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("the program's own"); });
                           twins.mine->head(h).sum().backward();
                         });
                         twins.a.zero_grad();
                         continue;
                       }
                       twins.backward(x);
                       twins.step();
                       twins.check(concat("step ", step));
                     }
                   }),
  };
  for (const std::string layout : {"dp", "zero=1", "zero=2", "zero=3"}) {
    cases.push_back(session_case(layout + ", uneven shares", [layout](Session& session) { in_layout(session, layout, 7); }));
    cases.push_back(
        session_case(layout + ", clipped, a rank without a share", [layout](Session& s) { in_layout(s, layout, 2, 0.05); }, "", 3));
    if (layout == "dp") continue;
    cases.push_back(session_case(
        "step(optimizer) under " + layout,
        [layout](Session& session) {
          Net net;
          Parallel parallel(*net, session, {.layout = layout, .optimizer = optim::SGDOptions(0.1)});
          optim::SGD own(net->parameters(), 0.1);
          parallel.step(own);
        },
        "no rank has all gradients"));
    cases.push_back(session_case(
        "rates that differ under " + layout,
        [layout](Session& session) {
          Net net;
          Parallel parallel(*net, session, {.layout = layout, .optimizer = optim::SGDOptions(0.1)});
          for (int step = 0; step < 4; ++step) {
            if (step == 1 && session.rank() == 1) parallel.set_learning_rate(0.05);
            loss_of(net, session.local(batch(6, step))).backward();
            parallel.step();
          }
        },
        "ranks step with different learning rates"));
  }
  for (const char* layout : {"dp=2", "zero=1,dp=2", "zero=3,dp=2", "pp=2,microbatches=2", "tp=2"})
    cases.push_back(session_case(concat("on a plateau, ", layout), [=](Session& session) { on_a_plateau(session, layout); }));
  return cases;
}

std::vector<Case> cases_of_checkpoints() {
  std::vector<Case> cases;
  for (const std::string from : {"torch", "dp", "zero=1", "zero=2", "zero=3"})
    for (const std::string to : {"torch", "dp", "zero=1", "zero=2", "zero=3"})
      if (from == "torch" || to == "torch" || (from == "zero=3" && to != "zero=3") || to == "zero=3")
        cases.push_back(session_case(from + " to " + to, [=](Session& session) { change_layout(session, from, to); }));
  for (const std::string layout : {"dp=2", "zero=2,dp=2", "zero=3,dp=2"})
    cases.push_back(session_case("dropout goes on, " + layout, [=](Session& session) { go_on_with_dropout(session, layout); }));
  return cases;
}

TEST_CASE("optimizers and layouts of Parallel") { run_cases("optimizers", cases_of_optimizers()); }
TEST_CASE("steps that one rank leaves") { run_cases("left steps", cases_of_left_steps()); }
TEST_CASE("checkpoints from layout to layout") { run_cases("checkpoints", cases_of_checkpoints()); }

}  // namespace
}  // namespace cohort
