// Loops behind the front door: Session and Parallel, with uneven batches, every layout, checkpoints between them.
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <memory>

#include "cohort/session/parallel.h"
#include "cohort/session/session.h"
#include "cohort/session/torture_models.h"

namespace cohort {
namespace {

using namespace torture;  // NOLINT
namespace optim = torch::optim;

/// A file in memory where the ranks of one case meet.
struct Meeting {
  const int file = ::memfd_create("torture", 0);
  ~Meeting() { ::close(file); }
};

Case session_case(const std::string& name, const std::function<void(Session&)>& program, const std::string& error = "", int num_ranks = 2) {
  const auto meeting = std::make_shared<Meeting>();
  const auto body = [=](Group& group) {
    World world{.rank = group.rank(), .size = group.size(), .local_rank = group.rank(), .local_size = group.size()};
    world.launcher = "cohort", world.host = "here", world.store_fd = meeting->file;
    Session session(world, {.timeout_seconds = 30});
    program(session);
  };
  return {name, body, error, num_ranks};
}

Tensor batch(int64_t rows, int64_t step) { return draw({rows, 6}, static_cast<uint64_t>(70 * step + rows)); }

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

void plain(Session& session, int64_t rows) { with_optimizer<optim::SGD>(session, optim::SGDOptions(0.125).momentum(0.5), rows); }

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

void accumulate(Session& session, const std::string& layout, bool around_all, const std::vector<int64_t>& rows) {
  Net mine, whole;
  const bool ours = layout != "torch";
  Parallel parallel(*mine, session, ours ? ParallelOptions{.layout = layout, .optimizer = optim::SGDOptions(0.125)} : ParallelOptions{});
  optim::SGD a(mine->parameters(), 0.125), b(whole->parameters(), 0.125);
  for (int step = 0; step < 4; ++step) {
    for (size_t piece = 0; piece < rows.size(); ++piece) {
      const Tensor x = batch(rows[piece], static_cast<int64_t>(10 * step + piece));
      std::shared_ptr<void> micro;
      if (around_all || piece + 1 < rows.size()) micro = parallel.accumulate();
      (loss_of(mine, session.local(x)) / 3).backward(), (loss_of(whole, x) / 3).backward();
    }
    if (ours) parallel.step();
    else parallel.step(a);
    b.step(), b.zero_grad();
    parallel.gather_weights();
    expect_same(*mine, *whole, false, concat(layout, ", step ", step));
    parallel.release_weights();
  }
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
            Net mine, whole;
            Parallel parallel(*mine, session);
            optim::SGD a(mine->parameters(), 0.125), b(whole->parameters(), 0.125);
            for (int step = 0; step < 3; ++step) {
              const Tensor x = batch(2, step), local = session.local(x);
              if (local.size(0) == 0) parallel.no_samples();
              else loss_of(mine, local).backward();
              loss_of(whole, x).backward();
              parallel.step(a), b.step(), b.zero_grad();
              expect_same(*mine, *whole, false, concat("step ", step));
            }
          },
          "", 3),
      session_case(
          "set_samples(), one of them 0, loss without a number",
          [](Session& session) {
            Net mine, whole;
            Parallel parallel(*mine, session);
            optim::SGD a(mine->parameters(), 0.125), b(whole->parameters(), 0.125);
            for (int step = 0; step < 3; ++step) {
              const int64_t counts[] = {3, step == 1 ? 0 : 1, 5}, begins[] = {0, 3, 3 + counts[1]};
              const Tensor x = batch(begins[2] + 5, step), local = x.narrow(0, begins[session.rank()], counts[session.rank()]);
              session.set_samples(local.size(0));
              const Tensor loss = loss_of(mine, local), all = loss_of(whole, x);
              loss.backward(), all.backward();
              expect_equal(session.mean(loss), all.detach(), "loss");
              expect(std::abs(session.mean(loss.item<double>()) - all.item<double>()) < 1e-12, "loss as a number");
              parallel.step(a), b.step(), b.zero_grad();
              expect_same(*mine, *whole, false, concat("step ", step));
            }
          },
          "", 3),
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
                     Net mine, whole;
                     Parallel parallel(*mine, session);
                     optim::SGD a(mine->parameters(), 0.125), b(whole->parameters(), 0.125);
                     optim::StepLR mine_rate(a, 2, 0.5), rate(b, 2, 0.5);
                     for (int step = 0; step < 6; ++step) {
                       const Tensor x = batch(5, step);
                       loss_of(mine, session.local(x)).backward(), loss_of(whole, x).backward();
                       parallel.step(a), b.step(), b.zero_grad();
                       mine_rate.step(), rate.step();
                       expect_same(*mine, *whole, false, concat("step ", step));
                     }
                   }),
      session_case(
          "RMSprop saved",
          [](Session& session) {
            Net net;
            Parallel parallel(*net, session);
            optim::RMSprop optimizer(net->parameters(), 0.01);
            parallel.save(std::filesystem::temp_directory_path() / concat("cohort-torture-", ::getpid(), "-none"), 1, &optimizer);
          },
          "checkpoints of Parallel hold the state of SGD, Adam and AdamW"),
      session_case(
          "ZeRO without options of the optimizer",
          [](Session& session) {
            Net net;
            Parallel parallel(*net, session, {.layout = "zero=1"});
          },
          "which LibTorch's optimizers cannot"),
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
          "goes with layout dp"),
      session_case("an exception in the middle of backward() on one rank",
                   [](Session& session) {
                     Net mine, whole;
                     Parallel parallel(*mine, session);
                     optim::SGD a(mine->parameters(), 0.125), b(whole->parameters(), 0.125);
                     for (int step = 0; step < 4; ++step) {
                       const Tensor x = batch(7, step);
                       if (step == 1) {
                         must_fail(session.rank() == 1 ? "the program's own" : "rank 1 left this step", [&] {
                           const Tensor h = mine->second(mine->first(session.local(x)));
                           if (session.rank() == 1)
                             h.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("the program's own"); });
                           mine->head(h).sum().backward();
                         });
                         a.zero_grad();
                         continue;
                       }
                       loss_of(mine, session.local(x)).backward(), loss_of(whole, x).backward();
                       parallel.step(a), b.step(), b.zero_grad();
                       expect_same(*mine, *whole, false, concat("step ", step));
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
  return cases;
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

std::vector<Case> cases_of_checkpoints() {
  std::vector<Case> cases;
  for (const std::string from : {"torch", "dp", "zero=1", "zero=2", "zero=3"})
    for (const std::string to : {"torch", "dp", "zero=1", "zero=2", "zero=3"})
      if (from == "torch" || to == "torch" || (from == "zero=3" && to != "zero=3") || to == "zero=3")
        cases.push_back(session_case(from + " to " + to, [=](Session& session) { change_layout(session, from, to); }));
  return cases;
}

TEST_CASE("batches of a session") { run_cases("batches", cases_of_batches()); }
TEST_CASE("optimizers and layouts of Parallel") { run_cases("optimizers", cases_of_optimizers()); }
TEST_CASE("micro-steps of Parallel") { run_cases("micro-steps", cases_of_micro_steps()); }
TEST_CASE("checkpoints from layout to layout") { run_cases("checkpoints", cases_of_checkpoints()); }

}  // namespace
}  // namespace cohort
