// A program calls what LibTorch's loops call: zero_grad() of the module, other optimizers, step() twice, to(); and sets the default type.
#include "cohort/base/fail.h"
#include "cohort/parallel/zero/zero_data_parallel.h"
#include "tests/support/own_code.h"

namespace cohort {
namespace {

using namespace own_code_test;

enum class Zeroing { kStrategy, kModule, kNone };

TEST_CASE("gradients of one step do not reach the next, whoever zeroes them; micro-steps add up") {
  for (const int stage : {kShared, 1, 2, 3}) {
    std::vector<Weights> all;
    for (const Zeroing zeroing : {Zeroing::kStrategy, Zeroing::kModule, Zeroing::kNone})
      run_thread_ranks(2, [&](Group& group) {
        Net net;
        const auto strategy = make(stage, net, group);
        for (int step = 0; step < kSteps; ++step) {
          if (zeroing == Zeroing::kStrategy) strategy->zero_grad();
          if (zeroing == Zeroing::kModule) net->zero_grad();
          for (int micro = 0; micro < 2; ++micro) {
            strategy->set_sync(micro == 1);
            loss_of(net, 2 * step + micro, group.rank()).backward();
          }
          strategy->finish_backward();
          if (step == 1 && !strategy->step({.learning_rate = 0.1, .clip_norm = 1, .check_finite = true}).skipped) continue;
          strategy->step({.learning_rate = 0.1});
        }
        const Weights mine = gathered_weights(*strategy, net, group);
        if (group.rank() == 0) all.push_back(mine);
        group.barrier();
      });
    check_equal(all[1], all[0], concat("stage ", stage, ", Module::zero_grad()"));
    check_equal(all[2], all[0], concat("stage ", stage, ", no zero_grad()"));
  }
}

TEST_CASE("zero: Module::zero_grad() between micro-steps of stage 1 drops what it drops in one process") {
  std::vector<Weights> all;
  for (const bool drops : {true, false})
    run_thread_ranks(2, [&](Group& group) {
      Net net;
      const auto strategy = make(1, net, group);
      if (drops) {
        strategy->set_sync(false);
        loss_of(net, 8, group.rank()).backward();
        net->zero_grad();
        strategy->set_sync(true);
      }
      loss_of(net, 9, group.rank()).backward();
      strategy->step({.learning_rate = 0.1});
      if (group.rank() == 0) all.push_back(weights_of(net));
      group.barrier();
    });
  check_equal(all[0], all[1], "dropped");
}

TEST_CASE("a parameter that became trainable after the strategy took the model is named, not left to drift apart") {
  const std::map<std::string, Edit> edits = {
      {"frozen", [](Net& net) { net->frozen.set_requires_grad(true); }},
      {"third.weight", [](Net& net) { net->register_module("third", nn::Linear(2, 2)); }},
      {"second.weight", [](Net& net) { net->second = net->replace_module("second", nn::Linear(40, 3)); }}};
  for (const int stage : {kShared, 1, 2, 3})
    for (const auto& [name, edit] : edits) {
      std::vector<std::string> errors(2);
      run_thread_ranks(2, [&, &name = name, &edit = edit](Group& group) {
        Net net;
        const auto strategy = make(stage, net, group);
        loss_of(net, 0, group.rank()).backward();
        strategy->step({.learning_rate = 0.1});
        edit(net);
        try {
          strategy->zero_grad();
          loss_of(net, 1, group.rank()).backward();
          strategy->finish_backward();
        } catch (const Error& error) {
          errors[static_cast<size_t>(group.rank())] = error.what();
        }
      });
      for (const std::string& error : errors)
        CHECK_MESSAGE(error.find("parameter " + name + " was registered, replaced or unfrozen after") == 0,
                      concat("stage ", stage, ": ", error));
    }
}

TEST_CASE("an optimizer of LibTorch's on a divided model is reported") {
  for (const int stage : {1, 2, 3})
    for (const bool calls_zero : {false, true}) {
      CAPTURE(stage);
      CAPTURE(calls_zero);
      const std::string text = refusal([&](Group& group) {
        Net net;
        ZeroDataParallel zero(*net, group, {.stage = stage});
        torch::optim::SGD optimizer(net->parameters(), 0.1);  // Writes through data().
        for (int step = 0; step < 6; ++step) {
          if (calls_zero) zero.zero_grad();
          else optimizer.zero_grad();
          loss_of(net, step, group.rank()).backward();
          if (calls_zero) zero.finish_backward();
          nn::utils::clip_grad_norm_(net->parameters(), 1.0);
          optimizer.step();
        }
      });
      if (stage == 1) check_says(text, "the gradients of 3 finished backward passes were dropped and step() was never called");
      else check_says(text, "aten::norm of a gradient between backward() and step(): ranks have parts of it there");
    }
  for (const int stage : {kShared, 1}) {
    const std::string text = refusal([&](Group& group) {
      Net net;
      const auto strategy = make(stage, net, group);
      torch::optim::Adam optimizer(net->parameters(), 0.1);  // Writes to the parameters themselves.
      for (int step = 0; step < 2; ++step) {
        strategy->zero_grad();
        loss_of(net, step, group.rank()).backward();
        strategy->finish_backward();
        optimizer.step();
      }
    });
    check_says(text,
               stage == 1 ? "the gradients of 1 finished backward" : "wrote to parameter first.weight in place; these weights are one");
  }
  const std::string shared = refusal([](Group& group) {
    Net net;
    const auto strategy = make(kShared, net, group);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    for (int step = 0; step < 6; ++step) {
      optimizer.zero_grad();
      loss_of(net, step, group.rank()).backward();
      optimizer.step();
    }
  });
  check_says(shared, "the gradients of 3 backward passes were dropped and step() was never called; these weights are one copy");
  check_says(shared, "leave the optimizer out of ParallelOptions and call step(optimizer)");
}

TEST_CASE("zero: gradients may be dropped on purpose") {
  for (const int stage : {1, 2, 3}) {
    Weights all[2];
    for (const bool drops : {false, true})
      run_thread_ranks(2, [&](Group& group) {
        Net net;
        ZeroDataParallel zero(*net, group, {.stage = stage, .rule = momentum()});
        const auto backward = [&](int step) {
          zero.zero_grad();
          loss_of(net, step, group.rank()).backward();
          zero.finish_backward();
        };
        for (int i = 0; i < 5 && drops; ++i) {
          backward(i);
          zero.skip_step();
        }
        backward(7);
        zero.step({.learning_rate = 0.1});
        for (int i = 0; i < 5 && drops; ++i) backward(i);  // After a step() zero_grad() drops as LibTorch's does.
        backward(8);
        zero.step({.learning_rate = 0.1});
        const Weights found = gathered_weights(zero, net, group);
        if (group.rank() == 0) all[drops] = found;
        group.barrier();
      });
    check_equal(all[1], all[0], concat("stage ", stage));
  }
}

TEST_CASE("a step() without new gradients is refused, one of ranks without samples is not") {
  for (const int stage : {kShared, 1, 2, 3})
    for (const bool first : {true, false}) {
      check_says(refusal([&](Group& group) {
                   Net net;
                   const auto strategy = make(stage, net, group);
                   if (!first) {
                     loss_of(net, 0, group.rank()).backward();
                     strategy->step({.learning_rate = 0.1});
                   }
                   strategy->step({.learning_rate = 0.1});
                 }),
                 "no rank has made a backward() since the last step()");
      run_thread_ranks(2, [&](Group& group) {
        Net net;
        const auto strategy = make(stage, net, group);
        const Weights before = gathered_weights(*strategy, net, group);
        strategy->exchange_without_backward();
        strategy->finish_backward();
        strategy->step({.learning_rate = 0.1});
        const Weights after = gathered_weights(*strategy, net, group);
        for (const auto& [name, value] : before)
          if (!torch::equal(after.at(name), value)) FAIL(name);
        group.barrier();
      });
    }
}

TEST_CASE("a model that is converted after it was wrapped, or tied, is refused") {
  for (const int stage : {kShared, 1, 2, 3}) {
    check_says(refused_edit(stage, [](Net& net, Strategy&, Group&) { net->to(torch::kDouble); }),
               "parameter frozen is Double [3] on cpu now and was Float [3] on cpu when ");
    check_says(refused_edit(stage, [](Net& net, Strategy&, Group&) { net->first->weight.set_data(torch::ones({2, 2})); }),
               "convert a model (module->to(), set_data()) before it is wrapped");
    check_says(refused_edit(
                   stage, [](Net& net, Strategy&, Group&) { net->first->bias.set_data(net->second->weight.view({-1}).narrow(0, 0, 40)); }),
               "parameters second.weight and first.bias share memory since");
  }
}

TEST_CASE("the program's default type of tensors does not matter") {
  const auto run = [] {
    std::vector<Weights> all;
    for (const int stage : {kShared, 1, 2, 3, 4})
      for (const auto kind : {UpdateRule::Kind::kMomentum, UpdateRule::Kind::kAdamW})
        run_thread_ranks(2, [&](Group& group) {
          Net net;
          net->to(torch::kFloat);
          StrategyOptions options{.zero = stage % 4, .rule = {.kind = kind}};
          options.share_weights = stage != 4;  // 4: DataParallel.
          const auto strategy = make_strategy(*net, group, options);
          for (int step = 0; step < 2; ++step) {
            strategy->set_control(0, 1);
            net->forward(rows(step, group.rank()).to(torch::kFloat)).sum().backward();
            strategy->finish_backward();
            if (strategy->control_sum(0) != 2) FAIL("control_sum");
            strategy->step({.learning_rate = 0.1, .clip_norm = 1});
            strategy->zero_grad();
          }
          for (const FlatPiece& piece : strategy->saved_pieces())
            if (piece.values.scalar_type() != torch::kFloat) FAIL(piece.name);
          const Weights found = gathered_weights(*strategy, net, group);
          if (group.rank() == 0) all.push_back(found);
          group.barrier();
        });
    return all;
  };
  const caffe2::TypeMeta before = torch::get_default_dtype();
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  std::vector<Weights> found;
  std::string text;
  try {
    found = run();
  } catch (const std::exception& error) {
    text = error.what();
  }
  torch::set_default_dtype(before);
  CHECK(text.empty());
  for (const Weights& weights : found)
    for (const auto& [name, value] : weights) CHECK_MESSAGE(value.isfinite().all().item<bool>(), name);
  CHECK(found.size() == 10);
}

}  // namespace
}  // namespace cohort
