// Your own model under Cohort's program: register it, call run_cli, and this binary has every verb of `cohort`.
//   my_program train --model mine:hidden=128 --data fashion-mnist --workers 2
//   my_program verify --model mine --data fashion-mnist --workers 2
#include <cohort/cohort.h>
#include <torch/torch.h>

COHORT_MODEL("mine", [](const cohort::ModelOptions& options) {
  const int64_t hidden = options.integer("hidden", 128);
  torch::nn::Sequential model;
  model->push_back("flatten", torch::nn::Flatten());
  model->push_back("hidden", torch::nn::Linear(options.data().input_elements(), hidden));
  model->push_back("relu", torch::nn::ReLU());
  model->push_back("output", torch::nn::Linear(hidden, options.data().num_classes));
  return model;
});

int main(int argc, char** argv) { return cohort::run_cli(argc, argv); }
