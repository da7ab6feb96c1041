// Models as users write them: modules of one piece, losses of their own, and what depends on how a batch is divided, of which
// `cohort verify` must say so. A plug-in for test_verify.py and test_own_models.py.
#include <ATen/ops/dropout.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdlib>

#include "cohort/models/registry.h"

namespace {

torch::nn::Sequential begin(const cohort::ModelOptions& options) {
  torch::nn::Sequential model;
  model->push_back("flatten", torch::nn::Flatten());
  model->push_back("hidden", torch::nn::Linear(options.data().input_elements(), 32));
  return model;
}

void end(torch::nn::Sequential& model, const cohort::ModelOptions& options) {
  model->push_back("relu", torch::nn::ReLU());
  model->push_back("output", torch::nn::Linear(32, options.data().num_classes));
}

/// Batch norm by hand.
struct HandMadeNormImpl : torch::nn::Module {
  explicit HandMadeNormImpl(int64_t features)
      : mean_(register_buffer("mean", at::zeros({features}))), variance_(register_buffer("variance", at::ones({features}))) {}
  at::Tensor forward(const at::Tensor& x) {
    if (!is_training()) return (x - mean_) / (variance_ + 1e-5).sqrt();
    const at::Tensor mean = x.mean(0), variance = x.var(0, /*unbiased=*/false);
    {
      const at::NoGradGuard no_grad;
      mean_.mul_(0.9).add_(mean, 0.1);
      variance_.mul_(0.9).add_(variance, 0.1);
    }
    return (x - mean) / (variance + 1e-5).sqrt();
  }

 private:
  at::Tensor mean_, variance_;
};
TORCH_MODULE(HandMadeNorm);

/// All in one forward().
struct PlainImpl : torch::nn::Module {
  PlainImpl(int64_t inputs, int64_t classes, bool with_norm, double probability)
      : hidden(inputs, 32), output(32, classes), norm(nullptr), dropout(probability) {
    register_module("hidden", hidden);
    register_module("output", output);
    if (with_norm) norm = register_module("norm", HandMadeNorm(32));
    register_module("dropout", dropout);
  }
  at::Tensor forward(at::Tensor x) {
    x = hidden(x.flatten(1));
    if (norm) x = norm(x);
    return output(dropout(x.relu()));
  }

  torch::nn::Linear hidden, output;
  HandMadeNorm norm;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(Plain);

}  // namespace

COHORT_MODEL("usual-batch-norm", [](const cohort::ModelOptions& options) {
  torch::nn::Sequential model = begin(options);
  model->push_back("norm", torch::nn::BatchNorm1d(32));
  end(model, options);
  return model;
});

COHORT_MODEL("usual-dropout", [](const cohort::ModelOptions& options) {
  torch::nn::Sequential model = begin(options);
  model->push_back("dropout", torch::nn::Dropout(0.3));
  end(model, options);
  return model;
});

COHORT_MODEL("plain", [](const cohort::ModelOptions& options) {
  return Plain(options.data().input_elements(), options.data().num_classes, options.integer("norm", 0, 0, 1) == 1,
               options.number("dropout", 0, 0, 0.9));
});

// What depends on how a batch is divided, a little: `how` 1 a norm over the batch that keeps no statistics, 2 a loss weighted by class, 3
// one that leaves a class out, 4 a sum over samples, 6 as 1 and a thousandth of it, 7 a function that draws, 8 a static variable. What does
// not: 5 a norm of each sample that computes in fp32 whatever it is given.
COHORT_MODEL("divided", [](const cohort::ModelOptions& options) {
  const int64_t how = options.integer("how", 0, 0, 8);
  torch::nn::Sequential model = begin(options);
  if (how == 1) model->push_back("norm", torch::nn::Functional([](const at::Tensor& x) { return x - x.mean(0, true) / 100; }));
  if (how == 6) model->push_back("norm", torch::nn::Functional([](const at::Tensor& x) { return x - x.mean(0, true) / 100000; }));
  if (how == 7)
    model->push_back("norm", torch::nn::Functional([](const at::Tensor& x) { return at::dropout(x, 0.5, at::GradMode::is_enabled()); }));
  if (how == 8)
    model->push_back("norm", torch::nn::Functional([](const at::Tensor& x) {
                       static int calls = 0;
                       return x * (1 + 0.01 * ++calls);
                     }));
  if (how == 5)
    model->push_back("norm", torch::nn::Functional([](const at::Tensor& x) {
                       const at::Tensor single = x.to(at::kFloat);
                       return (single - single.mean(1, true)).div(single.std(1, true, true) + 1e-3).to(x.scalar_type());
                     }));
  end(model, options);
  if (how != 2 && how != 3 && how != 4) return cohort::BuiltModel(model);
  return cohort::BuiltModel(model, {.loss = [how](const at::Tensor& output, const at::Tensor& target) {
                              at::Tensor weight = at::ones({output.size(1)}, output.options());
                              if (how == 2) weight[0] = 1.1;
                              return at::cross_entropy_loss(output, target, weight, how == 4 ? at::Reduction::Sum : at::Reduction::Mean,
                                                            /*ignore_index=*/how == 3 ? 1 : -100);
                            }});
});

// Squares of the distance to one-hot targets, which are no less than `offset`. Three linear layers: tp=2 divides the classes.
COHORT_MODEL("own-loss", [](const cohort::ModelOptions& options) {
  torch::nn::Sequential model = begin(options);
  model->push_back("relu1", torch::nn::ReLU());
  model->push_back("hidden2", torch::nn::Linear(32, 32));
  end(model, options);
  const double offset = options.number("offset", 0, 0, 1000);
  return cohort::BuiltModel(model, {.loss = [offset](const at::Tensor& output, const at::Tensor& target) {
                              return at::mse_loss(output, at::one_hot(target, output.size(-1)).to(output.scalar_type())) + offset;
                            }});
});

// What a user gets wrong, by `wrong`.
COHORT_MODEL("wrong", [](const cohort::ModelOptions& options) -> cohort::BuiltModel {
  using Inputs = cohort::LayerGraph::Inputs;
  const std::vector<std::string> all = {"bare", "frozen", "width", "classes", "detached", "loss", "sum", "conv", "in-place", "exit"};
  const std::string wrong = options.text("wrong", "bare", all);
  auto graph = std::make_shared<cohort::LayerGraph>();
  if (wrong == "conv") graph->add("conv", "conv2d", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 2, 3)));
  graph->add("flatten", "flatten", [](const Inputs& in) { return in[0].flatten(1); });
  if (wrong == "bare") return graph;
  const torch::nn::Linear hidden(options.data().input_elements(), 32);
  const torch::nn::Linear output(wrong == "width" ? 31 : 32, wrong == "classes" ? 2 : options.data().num_classes);
  graph->add("hidden", "linear", hidden);
  const bool in_place = wrong == "in-place", quits = wrong == "exit";
  graph->add("activation", "own", [in_place, quits](const Inputs& in) {
    const at::Tensor y = in[0].exp();
    if (quits) std::exit(0);
    return in_place ? y.add_(1) : y;
  });
  graph->add("output", "linear", output);
  if (wrong == "frozen")
    for (const at::Tensor& parameter : graph->parameters()) parameter.set_requires_grad(false);
  if (wrong == "detached") graph->add("copy", "own", [](const Inputs& in) { return in[0].detach(); });
  if (wrong == "loss") graph->set_loss([](const at::Tensor& scores, const at::Tensor&) { return scores.detach().mean(); });
  if (wrong == "sum") graph->set_loss([](const at::Tensor& scores, const at::Tensor&) { return 1e6 * scores.square().sum(); });
  return graph;
});

// One number a sample, of pictures or text: no scores of classes. `whole=1`: a loss that is no mean over samples.
COHORT_MODEL("regression", [](const cohort::ModelOptions& options) {
  auto graph = std::make_shared<cohort::LayerGraph>();
  graph->add("flatten", "flatten", [](const cohort::LayerGraph::Inputs& in) { return in[0].flatten(1).to(at::kFloat) / 100; });
  graph->add("output", "linear", torch::nn::Linear(options.data().input_elements(), 1));
  const bool whole = options.integer("whole", 0, 0, 1) == 1;
  return cohort::BuiltModel(graph, {.loss = [whole](const at::Tensor& output, const at::Tensor& target) {
                              const at::Tensor wanted = target.to(at::kFloat).reshape({target.size(0), -1}).mean(1) / 100;
                              const at::Tensor squares = (output.squeeze(1) - wanted).square();
                              return whole ? squares.max() : squares.mean();
                            }});
});
