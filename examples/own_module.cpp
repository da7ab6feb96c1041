// An ordinary LibTorch module under Cohort's program, with its own loss instead of the cross-entropy: the focal loss (Lin et al. 2017,
// "Focal loss for dense object detection"), which gives samples that are already right less weight. What happens inside of forward() cannot
// be seen from outside, so the module is one layer: it trains with dp, ZeRO and in half precision. The same layers as a
// torch::nn::Sequential can be cut into stages (pp) and divided (tp) too, with the same loss.
//
//   own_module train --model net --data fashion-mnist --workers 2 --lr 0.05
//
// Test: own_module train --model net --data synthetic:1x16x16,classes=4,samples=1024 --workers 2 --lr 0.1 --steps 60 --json --run run | grep '"val_error":0.0'
// Test: own_module verify --model net --data synthetic:1x16x16,classes=4,samples=256 --layout dp=2,zero=2 --steps 2
// Test: own_module verify --model chain --data synthetic:1x16x16,classes=4,samples=256 --layout pp=2,microbatches=2 --steps 2
// Test: own_module verify --model chain --data synthetic:1x16x16,classes=4,samples=256 --layout tp=2 --steps 2
#include <torch/torch.h>

#include "cohort/cohort.h"

namespace {

struct NetImpl : torch::nn::Module {
  NetImpl(int64_t inputs, int64_t classes) : hidden_(inputs, 64), skip_(64, 64), output_(64, classes) {
    register_module("hidden", hidden_);
    register_module("skip", skip_);
    register_module("output", output_);
  }
  torch::Tensor forward(const torch::Tensor& pictures) {
    const torch::Tensor x = hidden_(pictures.flatten(1)).relu();
    return output_(x + skip_(x).relu());
  }

 private:
  torch::nn::Linear hidden_, skip_, output_;
};
TORCH_MODULE(Net);

/// Scores {samples, classes} and labels {samples}; the mean over the samples.
torch::Tensor focal_loss(const torch::Tensor& scores, const torch::Tensor& labels) {
  const torch::Tensor log_odds = torch::log_softmax(scores, 1).gather(1, labels.unsqueeze(1)).squeeze(1);
  return ((1 - log_odds.exp()).square() * -log_odds).mean();
}

}  // namespace

COHORT_MODEL("net", [](const cohort::ModelOptions& options) {
  return cohort::BuiltModel(Net(options.data().input_elements(), options.data().num_classes), {.loss = focal_loss});
});

COHORT_MODEL("chain", [](const cohort::ModelOptions& options) {
  const torch::nn::Sequential layers(torch::nn::Flatten(), torch::nn::Linear(options.data().input_elements(), 64), torch::nn::ReLU(),
                                     torch::nn::Linear(64, options.data().num_classes));
  return cohort::BuiltModel(layers, {.loss = focal_loss});
});

int main(int argc, char** argv) { return cohort::run_cli(argc, argv); }
