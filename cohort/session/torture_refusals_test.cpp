// What a program gives that its model, its loss or its layout cannot take: a sentence that names the option or the layer, with shapes and
// types, where LibTorch would say its own.
#include "cohort/base/fail.h"
#include "cohort/models/graph/layer_graph.h"
#include "tests/support/torture_models.h"

namespace cohort {
namespace {

using namespace torture;  // NOLINT
namespace optim = torch::optim;

Tensor square_loss(const Tensor& output, const Tensor& target) { return (output - target).square().mean(); }

nn::Sequential a_sequential() {
  nn::Sequential net;
  net->push_back("in", nn::Linear(6, 8));
  net->push_back("bend", nn::Tanh());
  net->push_back("out", nn::Linear(8, 4));
  return net;
}

std::shared_ptr<LayerGraph> a_graph() {
  auto graph = std::make_shared<LayerGraph>();
  const int in = graph->add("in", "linear", nn::Linear(6, 8));
  const int bend = graph->add("bend", "tanh", [](const LayerGraph::Inputs& x) { return x[0].tanh(); });
  graph->add("sum", "add", [](const LayerGraph::Inputs& x) { return x[0] + x[1]; }, {in, bend});
  graph->add("out", "linear", nn::Linear(8, 4));
  return graph;
}

struct Step {
  Tensor x = at::ones({8, 6}), y = at::ones({8, 4});
  LossFunction loss = square_loss;
};

template <typename Model>
void step_of(Model net, Session& s, const std::string& layout, const Step& step, const Tensor& example = at::zeros({8, 6})) {
  Parallel parallel(*net, s, {.layout = layout, .optimizer = optim::SGDOptions(0.1), .example = example});
  parallel.forward_backward(s.local(step.x), s.local(step.y), step.loss);
}

TEST_CASE("what a model or a loss cannot take is said with the layer, shapes and types") {
  std::vector<Case> cases;
  for (const std::string layout : {"dp=2", "zero=3,dp=2", "dp=2,recompute=all", "tp=2", "pp=2,microbatches=2,split=2"}) {
    const bool pipeline = layout.starts_with("pp");
    const std::string rows = layout == "tp=2" ? "8" : "4";  // That a rank gets, or a micro-batch.
    const auto add = [&](const std::string& name, int rank, const std::string& text, const Step& step) {
      for (const bool graph : {false, true}) {
        const auto program = [=](Session& s) {
          // The other rank of a pipeline misses what this one does not send: the ranks of a test are threads, which do not end.
          must_fail(pipeline && s.rank() != rank ? "micro-batch 0" : text, [&] {
            if (graph) step_of(a_graph(), s, layout, step);
            else step_of(a_sequential(), s, layout, step);
          });
        };
        cases.push_back(session_case(concat(name, graph ? ", graph, " : ", Sequential, ", layout), program, "", 2, pipeline ? 2 : 30));
      }
    };
    add("input of another width", 0, concat("(LibTorch says: mat1 and mat2 shapes cannot be multiplied (", rows, "x5"),
        {.x = at::ones({8, 5})});
    add("input of another type", 0, concat("(", rows, ", 6) float64"), {.x = at::ones({8, 6}, at::kDouble)});
    add("targets of another width", 1,
        concat("the loss failed on an output of (", rows, ", 4) float32 and a target of (", rows,
               ", 3) float32 (LibTorch says: The size of tensor a"),
        {.y = at::ones({8, 3})});
    add("a loss without gradient", 1, "forward_backward(): the loss has no gradient, though the output has one",
        {.loss = [](const Tensor& out, const Tensor&) { return out.detach().mean(); }});
    add("a loss of whole numbers", 1, "the loss is one floating-point number",
        {.loss = [](const Tensor& out, const Tensor&) { return (out > 0).sum(); }});
    const auto refused = [&](const std::string& name, const std::string& text, const Tensor& y) {
      const auto program = [=](Session& s) {
        auto net = a_sequential();
        Parallel parallel(*net, s, {.layout = layout, .optimizer = optim::SGDOptions(0.1), .example = at::zeros({8, 6})});
        parallel.forward_backward(at::ones({4, 6}), y, square_loss);
      };
      cases.push_back(session_case(concat(name, ", ", layout), program, text));
    };
    refused("fewer targets", "4 rows of input ((4, 6) float32), and 3 of target ((3, 4) float32)", at::ones({3, 4}));
    refused("a target that is a number", "and a target that is one number", at::ones({}));
    refused("no target", "and no target", Tensor());
  }
  cases.push_back(session_case("names of layers, Sequential", [](Session& s) {
    must_fail("layer 'in' (torch::nn::LinearImpl) failed on (4, 5) float32",
              [&] { step_of(a_sequential(), s, "dp", {.x = at::ones({8, 5})}); });
    nn::Sequential late(nn::Linear(6, 5), nn::Tanh(), nn::Linear(6, 2));
    must_fail("layer '2' (torch::nn::LinearImpl) failed on (4, 5) float32", [&] { step_of(late, s, "dp", {}); });
  }));
  cases.push_back(session_case("names of layers, graph", [](Session& s) {
    must_fail("layer 'in' (linear), with weight (8, 6) float32 and bias (8) float32, failed on the model's input, (4, 5) float32",
              [&] { step_of(a_graph(), s, "dp", {.x = at::ones({8, 5})}); });
    const auto late = a_graph();
    late->add("last", "linear", nn::Linear(5, 2));
    must_fail("layer 'last' (linear), with weight (2, 5) float32 and bias (2) float32, failed on the output of layer 'out', (4, 4) float32",
              [&] { step_of(late, s, "dp", {}); });
  }));
  run_cases("refusals of steps", cases);
}

TEST_CASE("the loss of a pipeline cannot exchange, and a model without weights cannot be trained") {
  std::vector<Case> cases;
  cases.push_back(session_case(
      "a mean inside the loss",
      [](Session& s) {
        must_fail(s.rank() == 1 ? "inside the loss of a pipeline" : "micro-batch 0", [&] {
          const auto loss = [&](const Tensor& out, const Tensor& y) { return (out - y).square().mean() / s.mean(y.mean()); };
          step_of(a_sequential(), s, "pp=2,microbatches=2,split=2", {.loss = loss});
        });
      },
      "", 2, 2));
  for (const std::string layout : {"dp=2", "zero=1,dp=2", "tp=2", "pp=2"})
    cases.push_back(session_case(
        "no weights, " + layout,
        [=](Session& s) {
          nn::Sequential net(nn::ReLU{}, nn::Tanh{});
          step_of(net, s, layout, {});
        },
        "has no parameter that requires a gradient"));
  run_cases("pipelines' losses, no weights", cases);
}

TEST_CASE("what an option of Parallel cannot be is said") {
  std::vector<Case> cases;
  const auto add = [&](const std::string& name, const std::string& error, int num_ranks, const std::function<void(Session&)>& program) {
    cases.push_back(session_case(name, program, error, num_ranks));
  };
  const std::string measured = "ParallelOptions.example, on which the layers are measured: this model: layer 'in' (linear)";
  add("an example of another width",
      measured + ", with weight (8, 6) float32 and bias (8) float32, failed on the model's input, (8, 7) float32", 2,
      [](Session& s) { step_of(a_graph(), s, "pp=2", {}, at::zeros({8, 7})); });
  add("an example of another type",
      measured + ", with weight (8, 6) float32 and bias (8) float32, failed on the model's input, (4, 6) int64", 2,
      [](Session& s) { step_of(a_graph(), s, "pp=2,microbatches=2", {}, at::zeros({8, 6}, at::kLong)); });
  for (const int num_ranks : {1, 2})
    for (const bool ours : {false, true})
      add("batch norm over ranks of a model without one", "has no torch::nn::BatchNorm1d, 2d or 3d", num_ranks, [=](Session& s) {
        auto net = a_sequential();
        const Parallel parallel(
            *net, s, {.optimizer = ours ? OptimizerOptions(optim::SGDOptions(0.1)) : OptimizerOptions(), .sync_batch_norm = true});
      });
  for (const int num_ranks : {1, 2})
    add("batch norm over ranks of a model with one", "", num_ranks, [](Session& s) {
      nn::Sequential net(nn::Linear(6, 8), nn::BatchNorm1d(8));
      Parallel parallel(*net, s, {.sync_batch_norm = true});
      net->forward(s.local(at::rand({8, 6}))).sum().backward();
    });
  for (const std::string layout : {"", "dp=2", "zero=1,dp=2", "zero=2,dp=2", "zero=3,dp=2", "tp=2", "pp=2"})
    add("made between forward and backward, " + layout, "is not what it was in forward: Parallel was made between them", 2,
        [=](Session& s) {
          auto net = a_sequential();
          const Tensor loss = net->forward(at::ones({8, 6})).square().mean();
          const Parallel parallel(*net, s,
                                  {.layout = layout,
                                   .optimizer = layout.empty() ? OptimizerOptions() : OptimizerOptions(optim::SGDOptions(0.1)),
                                   .example = at::zeros({8, 6})});
          loss.backward();
        });
  add("an in-place operation of the program's own", "has been modified by an inplace operation", 2, [=](Session& s) {
    auto net = a_sequential();
    Parallel parallel(*net, s);
    Tensor out = net->forward(s.local(at::ones({8, 6}))).exp();
    const Tensor loss = out.square().mean();
    out.mul_(2);
    loss.backward();
  });
  run_cases("refusals of options", cases);
}

}  // namespace
}  // namespace cohort
