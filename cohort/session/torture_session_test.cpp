// Batches, micro-steps and buffers behind the front door: Session and Parallel.
#include "cohort/base/fail.h"
#include "tests/support/torture_models.h"

namespace cohort {
namespace {

using namespace torture;  // NOLINT
namespace optim = torch::optim;

void plain(Session& session, int64_t rows) {
  Twins twins(session);
  for (int step = 0; step < 4; ++step) {
    twins.backward(batch(rows, step));
    expect_same(*twins.mine, *twins.whole, true, concat("step ", step));
    twins.step();
    twins.check(concat("step ", step));
  }
}

void accumulate(Session& session, const std::string& layout, bool around_all, const std::vector<int64_t>& rows) {
  Twins twins(session, layout);
  for (int step = 0; step < 4; ++step) {
    for (size_t piece = 0; piece < rows.size(); ++piece) {
      const Tensor x = batch(rows[piece], static_cast<int64_t>(10 * step + piece));
      std::shared_ptr<void> micro;
      if (around_all || piece + 1 < rows.size()) micro = twins.parallel.accumulate();
      (loss_of(twins.mine, session.local(x)) / 3).backward(), (loss_of(twins.whole, x) / 3).backward();
    }
    twins.step();
    twins.check(concat(layout, ", step ", step));
  }
}

/// Gradients so small that the millionth which LibTorch adds to their norm counts.
void clip(Session& session, const std::string& layout) {
  Twins twins(session, layout, 100);
  for (int step = 0; step < 4; ++step) {
    const Tensor x = batch(6, step);
    (loss_of(twins.mine, session.local(x)) / 1e5).backward(), (loss_of(twins.whole, x) / 1e5).backward();
    const StepOutcome outcome = twins.step_mine({.clip_norm = 2e-6});
    const double norm = nn::utils::clip_grad_norm_(twins.whole->parameters(), 2e-6);
    expect(norm > 4e-6 && std::abs(outcome.gradient_norm - norm) < 1e-9 * norm, concat("norm ", outcome.gradient_norm, ", not ", norm));
    twins.step_whole();
    twins.check(concat(layout, ", step ", step));
  }
}

std::vector<Case> cases_of_batches() {
  return {
      session_case(
          "equal shares", [](Session& session) { plain(session, 6); }, "", 3),
      session_case("uneven shares", [](Session& session) { plain(session, 7); }),
      session_case(
          "a rank without a share", [](Session& session) { plain(session, 2); }, "", 3),
      session_case(
          "no_samples() on the rank without a share",
          [](Session& session) {
            Twins twins(session);
            for (int step = 0; step < 3; ++step) {
              const Tensor x = batch(2, step), local = session.local(x);
              if (local.size(0) == 0) twins.parallel.no_samples();
              else loss_of(twins.mine, local).backward();
              loss_of(twins.whole, x).backward();
              twins.step();
              twins.check(concat("step ", step));
            }
          },
          "", 3),
      session_case(
          "set_samples(), one of them 0, loss without a number",
          [](Session& session) {
            Twins twins(session);
            for (int step = 0; step < 3; ++step) {
              const int64_t counts[] = {3, step == 1 ? 0 : 1, 5}, begins[] = {0, 3, 3 + counts[1]};
              const Tensor x = batch(begins[2] + 5, step), local = x.narrow(0, begins[session.rank()], counts[session.rank()]);
              session.set_samples(local.size(0));
              const Tensor loss = loss_of(twins.mine, local), all = loss_of(twins.whole, x);
              loss.backward(), all.backward();
              expect_equal(session.mean(loss), all.detach(), "loss");
              expect(std::abs(session.mean(loss.item<double>()) - all.item<double>()) < 1e-12, "loss as a number");
              twins.step();
              twins.check(concat("step ", step));
            }
          },
          "", 3),
      session_case("clipping, LibTorch's optimizer", [](Session& session) { clip(session, "torch"); }),
      session_case("clipping, dp", [](Session& session) { clip(session, "dp"); }),
      session_case("clipping, zero=1", [](Session& session) { clip(session, "zero=1"); }),
      session_case("clipping, zero=3", [](Session& session) { clip(session, "zero=3"); }),
      session_case(
          "a backward left out on one rank",
          [](Session& session) {
            Net net;
            Parallel parallel(*net, session);
            optim::SGD optimizer(net->parameters(), 0.125);
            for (int step = 0; step < 70; ++step) {
              if (step != 66 || session.rank() != 1) loss_of(net, session.local(batch(6, step))).backward();
              parallel.step(optimizer);
            }
          },
          "how many steps they have made of model 0: rank 1 has '67 steps' where the others have '66 steps'", 3),
      session_case(
          "set_samples() below 0", [](Session& session) { session.set_samples(session.rank() == 0 ? 3 : -1); },
          "a rank has 0 samples or more"),
      session_case(
          "set_samples() 0 on all", [](Session& session) { session.set_samples(0); }, "no rank has any samples"),
      session_case(
          "local() of a number", [](Session& session) { session.local(at::ones({})); }, "a batch has rows"),
      session_case("a sampler's batches of an epoch are every sample once",
                   [](Session& session) {
                     SessionSampler sampler(session, 11, 4);
                     Tensor seen = at::zeros({11}, at::kDouble);
                     for (int64_t step = 0; step < sampler.steps_per_epoch(); ++step)
                       for (const int64_t index : sampler.next(step)) seen[index] += 1;
                     seen = session.sum(seen);
                     expect(seen.le(1).all().item<bool>() && seen.sum().item<double>() >= 8, "samples");
                   }),
      session_case("unfrozen after construction, uneven shares",
                   [](Session& session) {
                     Net mine, whole;
                     for (Net* net : {&mine, &whole}) (*net)->set_trained(*(*net)->first, false);
                     Parallel parallel(*mine, session);
                     optim::SGD a(mine->parameters(), 0.125), b(whole->parameters(), 0.125);
                     for (int step = 0; step < 4; ++step) {
                       if (step == 1)
                         for (Net* net : {&mine, &whole}) (*net)->set_trained(*(*net)->first, true);
                       const Tensor x = batch(7, step);
                       loss_of(mine, session.local(x)).backward(), loss_of(whole, x).backward();
                       expect_same(*mine, *whole, true, concat("step ", step));
                       parallel.step(a), b.step(), b.zero_grad();
                     }
                   }),
      session_case("registered after construction, uneven shares",
                   [](Session& session) {
                     Net mine, whole;
                     Parallel parallel(*mine, session);
                     for (Net* net : {&mine, &whole}) (*net)->add_extra(draw({8}, 6));
                     for (int step = 0; step < 3; ++step) {
                       mine->zero_grad(), whole->zero_grad();
                       const Tensor x = batch(7, step);
                       loss_of(mine, session.local(x)).backward(), loss_of(whole, x).backward();
                       expect_same(*mine, *whole, true, concat("step ", step));
                     }
                   }),
      session_case("autograd::grad of parameters, uneven shares",
                   [](Session& session) {
                     Net mine, whole;
                     Parallel parallel(*mine, session);
                     for (int step = 0; step < 3; ++step) {
                       mine->zero_grad(), whole->zero_grad();
                       const Tensor x = batch(3, step), local = session.local(x);
                       const auto loss = [](Net& net, const Tensor& rows) {
                         Tensor total = net->forward(rows).square().mean();  // A mean over rows of the slope of each.
                         for (int64_t row = 0; row < rows.size(0); ++row) {
                           const Tensor out = net->forward(rows.narrow(0, row, 1)).square().sum();
                           total =
                               total + torch::autograd::grad({out}, {net->head->weight}, {}, true, true)[0].square().sum() / rows.size(0);
                         }
                         return total;
                       };
                       loss(mine, local).backward(), loss(whole, x).backward();
                       expect_same(*mine, *whole, true, concat("step ", step));
                     }
                   }),
  };
}

std::vector<Case> cases_of_micro_steps() {
  std::vector<Case> cases;
  for (const std::string layout : {"torch", "dp", "zero=1", "zero=2", "zero=3"}) {
    cases.push_back(session_case(layout + ": all but the last", [=](Session& s) { accumulate(s, layout, false, {6, 6, 6}); }));
    cases.push_back(
        session_case(layout + ": all but the last, of other sizes", [=](Session& s) { accumulate(s, layout, false, {7, 5, 1}); }));
    cases.push_back(session_case(layout + ": all of them", [=](Session& s) { accumulate(s, layout, true, {7, 5, 3}); }));
  }
  return cases;
}

/// Running statistics count by the rows that each rank saw.
void running_statistics(Session& session, const std::string& layout, int64_t rows) {
  nn::Sequential net(nn::Linear(6, 5), nn::BatchNorm1d(5), nn::Linear(5, 2));
  net->to(at::kDouble), fill(*net, 3);
  const bool ours = layout != "torch";
  Parallel parallel(*net, session, ours ? ParallelOptions{.layout = layout, .optimizer = optim::SGDOptions(0.0)} : ParallelOptions{});
  optim::SGD own(net->parameters(), 0.0);
  const nn::BatchNorm1dImpl& norm = *net[1]->as<nn::BatchNorm1dImpl>();
  nn::Linear first(6, 5);
  first->to(at::kDouble), fill(*first, 3);
  Tensor expected = at::zeros({5}, at::kDouble);
  for (int step = 0; step < 3; ++step) {
    const Tensor x = batch(rows, step);
    Tensor local = session.local(x);
    if (session.size() == 3) {  // Of 5 rows 3, 0 and 2.
      const int64_t counts[] = {3, 0, 2}, begins[] = {0, 3, 3};
      local = x.narrow(0, begins[session.rank()], counts[session.rank()]);
      session.set_samples(local.size(0));
    }
    if (local.size(0) == 0) parallel.no_samples();
    else net->forward(local).square().mean().backward();
    if (ours) parallel.step();
    else parallel.step(own);
    const at::NoGradGuard no_grad;
    expected = expected * 0.9 + first(x).mean(0) * 0.1;  // The mean is linear in the rows.
    expect_equal(norm.running_mean, expected, concat(layout, ", mean after step ", step));
  }
}

std::vector<Case> cases_of_statistics() {
  std::vector<Case> cases;
  for (const std::string layout : {"torch", "dp", "zero=1", "zero=2", "zero=3"}) {
    cases.push_back(session_case(layout + ": batch norm, uneven shares", [=](Session& s) { running_statistics(s, layout, 5); }));
    cases.push_back(
        session_case(layout + ": batch norm, a rank without a share", [=](Session& s) { running_statistics(s, layout, 5); }, "", 3));
  }
  cases.push_back(session_case("a GAN: two models, each frozen in the other's turn, uneven shares", [](Session& session) {
    Net mine[2] = {Net(1), Net(5)}, whole[2] = {Net(1), Net(5)};
    Parallel first(*mine[0], session), second(*mine[1], session);
    std::vector<std::unique_ptr<optim::SGD>> optimizers;
    for (Net* nets : {mine, whole})
      for (int i = 0; i < 2; ++i) optimizers.push_back(std::make_unique<optim::SGD>(nets[i]->parameters(), 0.125));
    for (int step = 0; step < 6; ++step) {
      const int trained = step % 2;
      const Tensor x = batch(7, step);
      for (Net* nets : {mine, whole}) {
        nets[0]->set_trained(*nets[0], trained == 0), nets[1]->set_trained(*nets[1], trained == 1);
        const Tensor rows = nets == mine ? session.local(x) : x, out = nets[0]->forward(rows);
        nets[1]->forward(at::cat({out, out}, 1)).square().mean().backward();
      }
      (trained == 0 ? first : second).step(*optimizers[static_cast<size_t>(trained)]);
      optimizers[static_cast<size_t>(2 + trained)]->step(), optimizers[static_cast<size_t>(2 + trained)]->zero_grad();
      for (int i = 0; i < 2; ++i) expect_same(*mine[i], *whole[i], false, concat("step ", step, ", net ", i));
    }
  }));
  return cases;
}

TEST_CASE("batches of a session") { run_cases("batches", cases_of_batches()); }
TEST_CASE("running statistics behind the front door") { run_cases("statistics", cases_of_statistics()); }
TEST_CASE("micro-steps of Parallel") { run_cases("micro-steps", cases_of_micro_steps()); }

}  // namespace
}  // namespace cohort
