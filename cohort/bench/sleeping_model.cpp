// The node behind a layer's output sleeps for the gradient of its input and for that of its weight, each only where the engine asks for it:
// as LibTorch's own operators do, so that split backward divides it as it would divide a matrix product.

#include "cohort/bench/sleeping_model.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <cerrno>
#include <cmath>
#include <ctime>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/models/graph/layer_graph.h"

namespace cohort {
namespace {

void sleep_seconds(double seconds) {
  timespec left{static_cast<time_t>(seconds), static_cast<long>(std::fmod(seconds, 1.0) * 1e9)};
  while (::clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR) {
  }
}

struct SleepBackward : torch::autograd::TraceableFunction {
  explicit SleepBackward(const Delays& delays_) : delays(delays_) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    torch::autograd::variable_list out(2);
    if (task_should_compute_output(0)) {
      sleep_seconds(delays.backward_input);
      out[0] = gradients.at(0);
    }
    if (task_should_compute_output(1)) {
      sleep_seconds(delays.backward_weight);
      out[1] = at::ones({1});
    }
    return out;
  }
  std::string name() const override { return "cohort::SleepBackward"; }

  const Delays delays;
};

class SleepLayer : public torch::nn::Module {
 public:
  explicit SleepLayer(const Delays& delays) : torch::nn::Module("SleepLayer"), delays_(delays) {
    weight_ = register_parameter("weight", at::zeros({1}));
  }
  at::Tensor forward(const at::Tensor& input) {
    sleep_seconds(delays_.forward);
    at::Tensor output = input.detach().clone();
    if (!torch::autograd::compute_requires_grad(input, weight_)) return output;
    const auto node = c10::make_intrusive<SleepBackward>(delays_);
    node->set_next_edges(torch::autograd::collect_next_edges(input, weight_));
    torch::autograd::set_history(output, node);
    return output;
  }

 private:
  const Delays delays_;
  at::Tensor weight_;
};

}  // namespace

std::shared_ptr<LayerGraph> sleeping_model(const std::vector<Delays>& delays) {
  auto graph = std::make_shared<LayerGraph>();
  for (size_t stage = 0; stage < delays.size(); ++stage) {
    const auto layer = std::make_shared<SleepLayer>(delays[stage]);
    graph->add_layer(concat("sleep", stage), "sleep", layer, [layer](const LayerGraph::Inputs& in) { return layer->forward(in.at(0)); },
                     {});
  }
  return graph;
}

}  // namespace cohort
