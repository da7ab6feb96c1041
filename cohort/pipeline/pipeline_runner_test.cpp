#include "cohort/pipeline/pipeline_runner.h"

#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <mutex>

#include "cohort/base/fail.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/pipeline/stage_mail.h"
#include "tests/support/thread_ranks.h"

namespace {

using cohort::cut_graph;
using cohort::Group;
using cohort::LayerGraph;
using cohort::PipelineRunner;
using cohort::PipelineWork;
using cohort::Schedule;

/// Uses another layer's weight.
struct Tied : torch::nn::Module {
  explicit Tied(const at::Tensor& shared) : torch::nn::Module("Tied") { weight = register_parameter("weight", shared); }
  at::Tensor weight;
};

/// a -> b -> c -> d -> e, where d also reads a (a skip over two layers) and e uses a's weight.
std::shared_ptr<LayerGraph> build() {
  static std::mutex seeding;  // LibTorch's generator is shared by thread ranks.
  const std::lock_guard lock(seeding);
  torch::manual_seed(3);
  auto graph = std::make_shared<LayerGraph>();
  torch::nn::Linear first(6, 6);
  const int a = graph->add("a", "linear", first);
  graph->add("b", "linear", torch::nn::Linear(6, 6));
  const int c = graph->add("c", "tanh", [](const LayerGraph::Inputs& in) { return at::tanh(in[0]); });
  graph->add("d", "add", [](const LayerGraph::Inputs& in) { return at::add(in[0], in[1]); }, {c, a});
  auto tied = std::make_shared<Tied>(first->weight);
  graph->add_layer("e", "linear", tied, [tied](const LayerGraph::Inputs& in) { return at::linear(in[0], tied->weight); }, {});
  return graph;
}

at::Tensor input_of(int k) {
  const int64_t rows = k == 1 ? 2 : 3;  // Uneven micro-batches.
  return at::arange(rows * 6, at::kFloat).view({rows, 6}).mul(0.01 * (k + 1)).sin();
}

at::Tensor loss_of(const at::Tensor& output) { return output.square().sum(); }

/// Gradients of one process over the same micro-batches.
std::map<std::string, at::Tensor> expected(int num_micro_batches) {
  const auto graph = build();
  for (int k = 0; k < num_micro_batches; ++k) loss_of(graph->forward(input_of(k))).backward();
  std::map<std::string, at::Tensor> gradients;
  for (const auto& parameter : graph->named_parameters()) gradients[parameter.key()] = parameter.value().grad();
  return gradients;
}

void check_against_one_process(const std::vector<int>& stage_of, int num_ranks, const PipelineRunner::ScheduleMaker& maker) {
  constexpr int kMicroBatches = 5;
  const std::map<std::string, at::Tensor> reference = expected(kMicroBatches);
  const at::Tensor output_reference = build()->forward(input_of(7));
  std::mutex mutex;
  std::map<std::string, int> owners;
  cohort::run_thread_ranks(num_ranks, [&](Group& group) {
    const auto graph = build();
    PipelineRunner runner(*graph, cut_graph(*graph, stage_of), maker, group);
    for (int step = 0; step < 3; ++step) {
      for (const at::Tensor& parameter : graph->parameters()) parameter.mutable_grad() = at::Tensor();
      PipelineWork work;
      work.input = input_of;
      work.loss = [](int, const at::Tensor& output) { return loss_of(output); };
      runner.step(kMicroBatches, work);
      for (const auto& parameter : graph->named_parameters()) {
        const at::Tensor& gradient = parameter.value().grad();
        if (!gradient.defined() || !at::allclose(gradient, reference.at(parameter.key()), 1e-5, 1e-6))
          throw std::runtime_error("the gradient of " + parameter.key() + " differs in step " + std::to_string(step));
      }
      // Another batch size, forward alone.
      const at::NoGradGuard no_grad;
      runner.begin_evaluation();
      const at::Tensor output = runner.evaluate(0, [] { return input_of(7); });
      if (output.defined() != runner.has_last_stage()) throw std::runtime_error("the output is on the wrong rank");
      if (output.defined() && !at::allclose(output, output_reference, 1e-5, 1e-6)) throw std::runtime_error("evaluation differs");
    }
    const std::lock_guard lock(mutex);
    for (const auto& parameter : graph->named_parameters()) ++owners[parameter.key()];
  });
  for (const char* name : {"a.weight", "a.bias", "b.weight", "b.bias"}) CHECK_MESSAGE(owners.contains(name), name);
  for (const auto& [name, count] : owners) CHECK_MESSAGE(count == 1, name);
}

PipelineRunner::ScheduleMaker named(const std::string& name, int num_ranks) {
  return [=](int m) { return cohort::make_schedule(name, {.num_ranks = num_ranks, .num_micro_batches = m}); };
}

TEST_CASE("skips, tied weights and uneven micro-batches give the gradients of one process under every schedule") {
  for (const char* name : {"gpipe", "1f1b", "zb-h1"}) {
    CAPTURE(name);
    check_against_one_process({0, 0, 1, 1, 1}, 2, named(name, 2));
    check_against_one_process({0, 1, 1, 2, 2}, 3, named(name, 3));
    check_against_one_process({0, 1, 2, 3, 4}, 5, named(name, 5));
  }
  for (const char* name : {"interleaved:2", "bfs:2", "zb-v"}) {
    CAPTURE(name);
    check_against_one_process({0, 1, 2, 3, 3}, 2, named(name, 2));
  }
}

TEST_CASE("any graph of stages on any ranks") {
  // Stage 1 and 3 on one rank, stage 2 replicated on two.
  const std::vector<std::vector<int>> ranks_of_stage = {{0}, {1}, {2, 3}, {1}};
  const std::vector<std::pair<int, int>> edges = {{0, 1}, {0, 2}, {0, 3}, {1, 2}, {2, 3}};
  // Replicas see different micro-batches, so gradients are theirs alone: only stages of one rank can be compared. See the multi-process
  // tests.
  const auto graph = build();
  const auto cut = cut_graph(*graph, {0, 1, 1, 2, 3});
  CHECK(cut.stage_edges() == std::vector<std::pair<int, int>>{{0, 1}, {0, 2}, {0, 3}, {1, 2}, {2, 3}});
  check_against_one_process({0, 1, 1, 2, 3}, 3, [&](int m) { return cohort::make_graph_schedule(edges, {{0}, {1}, {2}, {1}}, m); });
  check_against_one_process({0, 1, 1, 2, 3}, 2, [&](int m) { return cohort::make_graph_schedule(edges, {{0}, {1}, {0}, {1}}, m, true); });
  CHECK(cohort::make_graph_schedule(edges, ranks_of_stage, 4).num_ranks() == 4);
}

TEST_CASE("cuts that cannot be are refused") {
  const auto graph = build();
  CHECK_THROWS_WITH_AS(cut_graph(*graph, {0, 1}), doctest::Contains("stages for 2 layers, and the model has 5"), cohort::Error);
  CHECK_THROWS_WITH_AS(cut_graph(*graph, {0, -1, 0, 0, 0}), doctest::Contains("is in stage -1"), cohort::Error);
  for (const std::vector<int>& firsts : {std::vector<int>{0, 9}, {1}, {0, 3, 3}, {0, 3, 2}, {0, -1}})
    CHECK_THROWS_WITH_AS(cohort::cut_at(*graph, firsts), doctest::Contains("stages begin with layer 0 and rise below 5"), cohort::Error);
  CHECK_THROWS_WITH_AS(cut_graph(*graph, {0, 2, 2, 2, 2}), doctest::Contains("stage 1 has no layer"), cohort::Error);
  CHECK_THROWS_WITH_AS(cut_graph(*graph, {1, 0, 1, 1, 1}), doctest::Contains("reads layer 'a' of the later stage 1"), cohort::Error);
  CHECK_THROWS_WITH_AS(cohort::find_parameter(*graph, "a.nothing"), doctest::Contains("no parameter a.nothing"), cohort::Error);
  cohort::Layout layout;
  layout.stages = {{{"a", "b"}, 0, 1}, {{"c", "d"}, 1, 1}};
  CHECK_THROWS_WITH_AS(cohort::cut_by_layout(*graph, layout), doctest::Contains("no stage has layer 'e'"), cohort::Error);
  layout.stages[1].layers = {"c", "d", "e", "a"};
  CHECK_THROWS_WITH_AS(cohort::cut_by_layout(*graph, layout), doctest::Contains("layer 'a' is in stage 0 and in stage 1"), cohort::Error);
  layout.stages[1].layers = {"c", "dd", "e"};
  CHECK_THROWS_WITH_AS(cohort::cut_by_layout(*graph, layout), doctest::Contains("names layer 'dd'"), cohort::Error);
}

TEST_CASE("a schedule for other stages or ranks is refused by every rank") {
  CHECK_THROWS_WITH_AS(cohort::run_thread_ranks(2,
                                                [](Group& group) {
                                                  const auto graph = build();
                                                  PipelineRunner runner(*graph, cut_graph(*graph, {0, 0, 0, 1, 1}), named("1f1b", 3),
                                                                        group);
                                                }),
                       doctest::Contains("is for 3 ranks and 3 stages"), cohort::Error);
}

}  // namespace
