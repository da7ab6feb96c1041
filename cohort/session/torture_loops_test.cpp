// Loops of other forms: backwards in accumulate() alone, batches of several sizes, a program that goes on without Parallel.
#include <memory>

#include "cohort/base/fail.h"
#include "tests/support/torture_trained.h"

namespace cohort {
namespace {

using namespace torture;  // NOLINT

/// In accumulate() all, some or none; the last is always one that exchanges, or there is none that does.
TEST_CASE("backwards in accumulate() alone are exchanged by step(), and one after the exchange is told") {
  std::vector<Case> cases;
  for (const std::string layout : {"dp", "zero=1", "zero=2", "tp=2", "dp=2,compress=powersgd:9", "own"})
    for (const bool ends_held : {false, true})
      cases.push_back(session_case(
          concat(layout, ends_held ? ", held after an exchange" : ", all held"),
          [=](Session& session) {
            const bool own = layout == "own";
            auto mine = a_net(), whole = a_net();
            Parallel parallel(
                *mine, session,
                {.layout = own ? "dp" : layout, .optimizer = own ? OptimizerOptions() : OptimizerOptions(optim::SGDOptions(0.1))});
            optim::SGD a(mine->parameters(), 0.1), b(whole->parameters(), 0.1);
            for (int step = 0; step < 3; ++step) {
              for (int part = 0; part < 2; ++part) {
                const auto held = part == 0 && ends_held ? nullptr : parallel.accumulate();
                const Tensor x = batch(8, 10 * step + part);
                mine->forward(session.local(x)).square().mean().backward();
                whole->forward(x).square().mean().backward();
              }
              if (own) parallel.step(a);
              else parallel.step();
              b.step(), b.zero_grad();
            }
            const Tensor x = batch(8, 77);
            const double tolerance = layout.find("compress") == std::string::npos ? 1e-9 : 0.2;
            expect_equal(mine->forward(x).detach(), whole->forward(x).detach(), "output", tolerance);
          },
          !ends_held                   ? ""
          : layout.starts_with("zero") ? "got a gradient after those of the step were exchanged"
                                       : "the last backward() before it was in accumulate(), after one that was not"));
  run_cases("accumulated gradients", cases);
}

TEST_CASE("a program that goes on without Parallel") {
  std::vector<Case> cases;
  for (const std::string layout : {"dp", "zero=1", "zero=2"}) {
    cases.push_back(session_case("weights of a rank's own, " + layout, [=](Session& session) {
      auto trained = std::make_unique<Trained>(session, layout);
      trained->backward(1), trained->step();
      auto mine = trained->net, whole = trained->whole;
      trained.reset();
      optim::SGD a(mine->parameters(), 0.1), b(whole->parameters(), 0.1);
      for (auto* const net : {&mine, &whole}) {
        (*net)->forward(batch(8, 5)).square().mean().backward();
        (*net)->parameters()[0].data().mul_(0.5);
      }
      session.barrier();
      a.step(), b.step();
      expect_same(*mine, *whole, false, layout);
    }));
    cases.push_back(session_case("gone between backward() and step(), " + layout, [=](Session& session) {
      auto net = a_net();
      {
        Parallel parallel(*net, session, {.layout = layout, .optimizer = optim::SGDOptions(0.1)});
        net->forward(session.local(batch(8, 1))).square().mean().backward();
      }
      must_fail("ranks have parts of it there", [&] { optim::SGD(net->parameters(), 0.1).step(); });
      auto whole = a_net();
      Parallel parallel(*net, session, {.layout = layout, .optimizer = optim::SGDOptions(0.1)});
      const Tensor x = batch(8, 2);
      net->forward(session.local(x)).square().mean().backward(), whole->forward(x).square().mean().backward();
      parallel.step(), optim::SGD(whole->parameters(), 0.1).step();
      parallel.gather_weights();
      expect_same(*net, *whole, false, layout);
      parallel.release_weights();
    }));
  }
  cases.push_back(session_case("forward after Parallel, tp=2", [](Session& session) {
    auto trained = std::make_unique<Trained>(session, "tp=2");
    trained->backward(1), trained->step();
    auto mine = trained->net, whole = trained->whole;
    trained.reset();
    expect_equal(mine->forward(batch(8, 5)).detach(), whole->forward(batch(8, 5)).detach(), "output");
  }));
  run_cases("without Parallel", cases);
}

TEST_CASE("a loss counts by the batch that it is of, and an optimizer's parameters are in a Parallel") {
  std::vector<Case> cases;
  const auto add = [&](const std::string& name, const std::string& error, const std::function<void(Session&, Trained&)>& program) {
    for (const std::string& layout : kReplicas)
      cases.push_back(session_case(
          name + ", " + layout,
          [=](Session& session) {
            Trained trained(session, layout);
            program(session, trained);
            trained.compare(name);
          },
          error));
  };
  const auto step = [](Session& session, Trained& trained, const std::function<void()>& between) {
    const Tensor x = batch(7, 1);
    const Tensor loss = trained.net->forward(session.local(x)).square().mean();
    between();
    loss.backward(), trained.whole->forward(x).square().mean().backward();
    trained.step();
  };
  add("an evaluation between forward and backward()", "", [=](Session& session, Trained& trained) {
    step(session, trained, [&] {
      const at::NoGradGuard no_grad;
      expect(session.mean(session.local(batch(9, 5)).mean()).defined(), "mean");
    });
  });
  add("another batch between forward and backward()",
      "batches of 7 and of 8 rows were divided, of which this rank's parts count differently",
      [=](Session& session, Trained& trained) { step(session, trained, [&] { session.local(batch(8, 5)); }); });
  add("another batch, and set_samples()", "", [=](Session& session, Trained& trained) {
    step(session, trained, [&] {
      session.local(batch(8, 5));
      session.set_samples(session.is_first() ? 4 : 3);
    });
  });
  cases.push_back(session_case(
      "a parameter of nobody's",
      [](Session& session) {
        auto net = a_net();
        Tensor scale = at::ones({1}, at::kDouble).requires_grad_();
        Parallel parallel(*net, session);
        std::vector<Tensor> all = net->parameters();
        all.push_back(scale);
        optim::SGD optimizer(all, 0.1);
        (net->forward(session.local(batch(8, 1))) * scale).square().mean().backward();
        parallel.step(optimizer);
      },
      "the optimizer has a parameter of shape [1] that is in no module given to Parallel"));
  for (const bool after_backward : {false, true})
    cases.push_back(session_case(
        concat("gradients from autograd::grad(), ", after_backward ? "after a step that was exchanged" : "at the first step"),
        [after_backward](Session& session) {
          auto net = a_net();
          Parallel parallel(*net, session);
          optim::SGD optimizer(net->parameters(), 0.1);
          const auto loss = [&] { return net->forward(session.local(batch(8, 1))).square().mean(); };
          if (after_backward) loss().backward(), parallel.step(optimizer);
          std::vector<Tensor> parameters = net->parameters();
          const auto made = torch::autograd::grad({loss()}, parameters);
          for (size_t i = 0; i < made.size(); ++i) parameters[i].mutable_grad() = made[i];
          parallel.step(optimizer);
        },
        "has a gradient that no backward() since its last step has exchanged (from autograd::grad()?)"));
  for (const char* layout : {"dp", "zero=1", "zero=3", "tp=2"})
    cases.push_back(session_case(
        concat("two Parallels over one module, ", layout),
        [layout](Session& session) {
          auto net = a_net();
          Parallel first(*net, session, {.layout = layout, .optimizer = optim::SGDOptions(0.1)});
          Parallel second(*net, session, {.layout = layout, .optimizer = optim::SGDOptions(0.1)});
        },
        "a model can be in one Parallel"));
  cases.push_back(session_case("two optimizers of one backward()", [](Session& session) {
    auto net = a_net();
    Parallel parallel(*net, session);
    const std::vector<Tensor> all = net->parameters();
    optim::SGD first({all[0]}, 0.1), others(std::vector<Tensor>(all.begin() + 1, all.end()), 0.1);
    for (int step = 0; step < 2; ++step) {
      net->forward(session.local(batch(8, step))).square().mean().backward();
      parallel.step(first), parallel.step(others);
      parallel.step(first);  // Nothing is left to apply.
    }
  }));
  run_cases("batches of a loss", cases);
}

}  // namespace
}  // namespace cohort
