// Models that depend on how their batch is divided, as users write them: `cohort verify` must say so. A plug-in for test_verify.py.
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

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
