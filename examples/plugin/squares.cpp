// A model as a plug-in: a shared library that the program `cohort` loads with --plugin, so you need no program of your own. Loading it
// runs COHORT_MODEL, and from then on the model's name works like a built-in one. Here: a linear model of the inputs and their squares.
//
//   cohort train --plugin squares.so --model squares --data fashion-mnist --workers 2
//
// Outside of this repository (build it with the compiler and LibTorch that Cohort was built with):
//   find_package(Cohort CONFIG REQUIRED)
//   add_library(squares MODULE squares.cpp)
//   target_link_libraries(squares PRIVATE Cohort::cohort)
//
// Test: cohort doctor --plugin $EXAMPLES/squares.so --json | grep '"models".* squares'
// Test: cohort verify --plugin $EXAMPLES/squares.so --model squares:scale=0.5 --data synthetic:1x8x8,classes=4,samples=256 --workers 2 --steps 2
#include <ATen/ops/cat.h>
#include <torch/nn/modules/linear.h>

#include "cohort/models/registry.h"

COHORT_MODEL("squares", [](const cohort::ModelOptions& options) {
  const double scale = options.number("scale", 1.0, 0.0, 100.0);  // --model squares:scale=0.5
  auto graph = std::make_shared<cohort::LayerGraph>();
  graph->add("squares", "concat", [scale](const cohort::LayerGraph::Inputs& in) {
    const at::Tensor flat = in[0].flatten(1);
    return at::cat({flat, scale * flat * flat}, 1);
  });
  graph->add("output", "linear", torch::nn::Linear(2 * options.data().input_elements(), options.data().num_classes));
  return graph;
});
