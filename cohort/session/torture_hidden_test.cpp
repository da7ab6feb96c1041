// What a program does to gradients between backward() and step(), and to weights between steps, where ranks have parts of them: as in one
// process, or told.
#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/parallel/watch/operator_watch.h"
#include "tests/support/torture_trained.h"

namespace cohort {
namespace {

using namespace torture;  // NOLINT
using Drop = std::function<void(nn::Sequential&)>;
struct NamedDrop {
  std::string name;
  Drop drop;
};
const std::vector<NamedDrop> kDrops = {
    {"zero_grad() to none", [](nn::Sequential& net) { net->zero_grad(); }},
    {"zero_grad() in place", [](nn::Sequential& net) { net->zero_grad(/*set_to_none=*/false); }},
    {"an optimizer's zero_grad()", [](nn::Sequential& net) { optim::SGD(net->parameters(), 0.1).zero_grad(/*set_to_none=*/false); }},
    {".grad by hand",
     [](nn::Sequential& net) {
       for (Tensor& parameter : net->parameters()) parameter.mutable_grad() = Tensor();
     }},
    {"some of them", [](nn::Sequential& net) { (*net)[0]->zero_grad(); }},
};

TEST_CASE("gradients that the program drops are not applied, whatever the layout") {
  std::vector<Case> cases;
  for (const std::string layout : {"dp", "zero=1", "zero=2", "zero=3", "tp=2"})
    for (const auto& [name, drop] : kDrops) {
      cases.push_back(session_case(concat(layout, ", ", name, " between micro-steps"), [=](Session& session) {
        Trained trained(session, layout);
        for (int step = 0; step < 3; ++step) {
          {
            const auto held = trained.parallel.accumulate();
            trained.backward(10 * step);
          }
          if (step != 1) drop(trained.net), drop(trained.whole);
          trained.backward(10 * step + 1);
          trained.step();
        }
        trained.compare(name);
      }));
      if (name == "some of them") continue;
      cases.push_back(session_case(concat(layout, ", ", name, " in place of step()"), [=](Session& session) {
        Trained trained(session, layout);
        trained.backward(1), trained.step();
        trained.backward(2);
        drop(trained.net), drop(trained.whole);
        trained.backward(3), trained.step();
        trained.compare(name);
      }));
    }
  run_cases("dropped gradients", cases);
}

/// The generator's loss leaves gradients in the discriminator, which are dropped before its own.
void train_gan(Session& session, const std::string& layout) {
  Trained generator(session, layout), discriminator(session, layout);
  nn::Sequential head = nn::Sequential(nn::Linear(4, 6));
  head->to(at::kDouble), fill(*head, 8);
  const auto judged = [&](nn::Sequential& judge, const Tensor& made) { return judge->forward(head->forward(made)); };
  for (int step = 0; step < 3; ++step) {
    const Tensor x = batch(8, step);
    discriminator.net->zero_grad(), discriminator.whole->zero_grad();
    judged(discriminator.net, generator.net->forward(session.local(x)).detach()).square().mean().backward();
    judged(discriminator.whole, generator.whole->forward(x).detach()).square().mean().backward();
    discriminator.step();
    generator.net->zero_grad(), generator.whole->zero_grad();
    judged(discriminator.net, generator.net->forward(session.local(x))).mean().backward();
    judged(discriminator.whole, generator.whole->forward(x)).mean().backward();
    generator.parallel.step(), generator.optimizer.step();
  }
  generator.compare("generator"), discriminator.compare("discriminator");
}

TEST_CASE("a GAN of the usual kind, with the optimizers given to Parallel") {
  std::vector<Case> cases;
  for (const std::string& layout : kReplicas)
    cases.push_back(session_case("GAN, " + layout, [=](Session& session) { train_gan(session, layout); }));
  run_cases("GANs", cases);
}

TEST_CASE("who measures or changes a part of a gradient is told") {
  std::vector<Case> cases;
  struct Touch {
    std::string name, error;
    Drop touch;
  };
  const std::string parts = " of a gradient between backward() and step(): ranks have parts of it there";
  const std::vector<Touch> touches = {
      {"clip_grad_norm_()", "aten::norm" + parts, [](auto& net) { nn::utils::clip_grad_norm_(net->parameters(), 0.01); }},
      {"clip_grad_value_()", "aten::clamp_" + parts, [](auto& net) { nn::utils::clip_grad_value_(net->parameters(), 0.001); }},
      {"a factor", "aten::mul_" + parts, [](auto& net) { net->parameters()[0].mutable_grad().mul_(0.5); }},
      {"a factor through data()", "aten::mul_" + parts, [](auto& net) { net->parameters()[0].grad().data().mul_(0.5); }},
      {"a norm", "aten::norm" + parts, [](auto& net) { (void)net->parameters()[0].grad().norm(); }},
      {"a copy", "aten::clone" + parts, [](auto& net) { (void)net->parameters()[0].grad().clone(); }},
      {"a pointer", "ranks have parts of it there", [](auto& net) { net->parameters()[0].grad().template data_ptr<double>()[1] *= 2; }},
      {"an accessor", "ranks have parts of it there",
       [](auto& net) { net->parameters()[0].grad().template accessor<double, 2>()[1][1] = 0; }},
      {"a gradient of one's own", "the program put another tensor in the place of the gradient of 0.weight",
       [](auto& net) { net->parameters()[0].mutable_grad() = at::ones_like(net->parameters()[0]); }},
      {"no gradients", "took the gradient of 0.weight away", [](auto& net) { net->zero_grad(); }},
      {"an optimizer of LibTorch's", parts, [](auto& net) { optim::SGD(net->parameters(), 0.1).step(); }},
  };
  for (const std::string layout : {"dp", "zero=1", "zero=2", "zero=3", "tp=2", "pp=2"})
    for (const auto& [name, error, touch] : touches) {
      if (layout == "zero=3" && (name == "a gradient of one's own" || name == "an optimizer of LibTorch's")) continue;
      const bool is_divided = layout == "zero=2" || layout == "zero=3";
      cases.push_back(session_case(
          concat(name, ", ", layout),
          [=](Session& session) {
            Trained trained(session, layout);
            if (layout == "pp=2" && trained.net->parameters().empty()) throw std::runtime_error(error);  // It has no layer of its own.
            const Tensor x = batch(8, 1);
            trained.parallel.forward_backward(session.local(x), session.local(x), mean_square);
            touch(trained.net);
            trained.parallel.step();
          },
          name == "no gradients" && is_divided                    ? "the program dropped the gradient of 0.weight"
          : name == "no gradients" && layout == "pp=2"            ? "away after the last backward()"
          : name == "a gradient of one's own" && layout == "pp=2" ? "the program put another tensor"
          : name == "a gradient of one's own" && is_divided       ? "the program gave 0.weight a gradient of its own"
                                                                  : error));
    }
  for (const auto& [name, error, touch] : touches) {
    if (name == "no gradients") continue;
    cases.push_back(session_case(
        name + " in accumulate()",
        [touch = touch](Session& session) {
          auto net = a_net();
          Parallel parallel(*net, session);
          optim::SGD optimizer(net->parameters(), 0.1);
          {
            const auto held = parallel.accumulate();
            net->forward(session.local(batch(8, 1))).square().mean().backward();
          }
          touch(net);
          parallel.step(optimizer);
        },
        error));
  }
  cases.push_back(session_case(
      "a gradient without backward()",
      [](Session& session) {
        Trained trained(session, "dp");
        trained.net->parameters()[0].mutable_grad() = at::ones_like(trained.net->parameters()[0]);
        trained.parallel.step();
      },
      "the program gave 0.weight a gradient of its own"));
  cases.push_back(session_case(
      "dropped on one rank alone",
      [](Session& session) {
        Trained trained(session, "zero=2");
        {
          const auto held = trained.parallel.accumulate();
          trained.backward(1);
        }
        if (session.is_first()) trained.net->zero_grad();
        trained.backward(2);
      },
      "the program dropped the gradient of 0.weight on rank 0 and not on rank 1"));
  cases.push_back(session_case("the norm that step() returns", [](Session& session) {
    Trained trained(session, "zero=2");
    trained.backward(1);
    double squares = 0;
    for (const Tensor& parameter : trained.whole->parameters()) squares += parameter.grad().square().sum().item<double>();
    const double norm = trained.parallel.step({.clip_norm = INFINITY}).gradient_norm;
    expect(std::abs(norm - std::sqrt(squares)) < 1e-12, concat("norm ", norm, " of ", std::sqrt(squares)));
    trained.optimizer.step();
    trained.compare("weights");
  }));
  run_cases("hidden gradients", cases);
}

TEST_CASE("a penalty on weights inside the loss counts whole weights, or is refused") {
  std::vector<Case> cases;
  for (const std::string layout : {"dp", "zero=1", "zero=2", "zero=3", "tp=2", "pp=2", "pp=2,microbatches=2"}) {
    const bool has_parts = layout.starts_with("tp") || layout.starts_with("pp");
    cases.push_back(session_case(
        "weights in the loss, " + layout,
        [=](Session& session) {
          Trained trained(session, layout);
          const auto loss_of = [](nn::Sequential& net) {
            return [&net](const Tensor& output, const Tensor&) {
              Tensor loss = output.square().mean();
              for (const Tensor& parameter : net->parameters()) loss = loss + 0.1 * parameter.norm();
              return loss;
            };
          };
          const Tensor x = batch(8, 1);
          const auto train = [&] { trained.parallel.forward_backward(session.local(x), session.local(x), loss_of(trained.net)); };
          if (has_parts) {
            // Of a pipeline the other rank waits for gradients: the ranks of a test are threads, which do not end.
            const bool waits = layout.starts_with("pp") && session.rank() == 0;
            return must_fail(waits ? "micro-batch 0" : "not through the model's output (a penalty on weights", train);
          }
          train();
          loss_of(trained.whole)(trained.whole->forward(x), x).backward();
          trained.step();
          trained.compare("penalty");
        },
        "", 2, has_parts ? 2 : 30));
  }
  cases.push_back(session_case(
      "a weight of another stage",
      [](Session& session) {
        must_fail(session.rank() == 1 ? "not through the model's output" : "micro-batch 0", [&] {
          nn::Sequential net(nn::Linear(6, 8), nn::Tanh(), nn::Linear(8, 4));
          const Tensor weight = net->parameters()[0];
          Parallel parallel(*net, session, {.layout = "pp=2", .optimizer = optim::SGDOptions(0.1), .example = at::zeros({8, 6})});
          parallel.forward_backward(session.local(at::ones({8, 6})), session.local(at::ones({8, 6})),
                                    [&](const Tensor& output, const Tensor&) { return output.square().mean() + weight.square().sum(); });
        });
      },
      "", 2, 2));
  cases.push_back(session_case(
      "a penalty before the first forward",
      [](Session& session) {
        Trained trained(session, "tp=2");
        const auto held = trained.parallel.accumulate();
        trained.net->parameters()[0].norm().backward();
      },
      "not through the model's output"));
  run_cases("weights in the loss", cases);
}

TEST_CASE("one copy of the weights: writes through data() are told") {
  std::vector<Case> cases;
  const auto add = [&](const std::string& name, const std::string& error, const Drop& write) {
    cases.push_back(session_case(
        name,
        [=](Session& session) {
          Trained trained(session, "dp");
          for (int step = 0; step < 3; ++step) {
            trained.backward(step), trained.step();
            write(trained.net), write(trained.whole);
          }
          trained.compare(name);
        },
        error));
  };
  const std::string told = "a program wrote to parameter 0.weight in place, through data() or a pointer, since the last step";
  add("a factor through data()", told, [](auto& net) { net->parameters()[0].data().mul_(0.9); });
  add("a factor through a pointer", told, [](auto& net) {
    for (int64_t i = 0; i < 48; ++i) net->parameters()[0].template data_ptr<double>()[i] *= 0.5;
  });
  add("set_data()", "", [](auto& net) {
    for (Tensor& parameter : net->parameters()) parameter.set_data(parameter.data() * 0.9);
  });
  for (const std::string& layout : kReplicas)
    cases.push_back(session_case(
        "an embedding with max_norm, " + layout,
        [=](Session& session) {
          nn::Sequential net(nn::Embedding(nn::EmbeddingOptions(10, 4).max_norm(0.5)), nn::Linear(4, 2));
          const Parallel parallel(*net, session, {.layout = layout, .optimizer = optim::SGDOptions(0.1)});
        },
        "layer 0 is an embedding with max_norm, which changes its weights in forward"));
  run_cases("writes to one copy", cases);
}

}  // namespace
}  // namespace cohort
