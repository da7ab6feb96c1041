// A trained model in your own program: load() of a file that `cohort checkpoint export` wrote returns a module that is ready to call, and
// what its inputs and outputs need: sizes, names of the classes, normalisation. Classifies two synthetic pictures, a line each, and prints
// their scores. examples/use_model.py is the same in Python, and prints the same.
//
//   cohort train --model mlp-small --data fashion-mnist --run runs/mlp
//   cohort checkpoint export runs/mlp --checkpoint best --out mlp.safetensors
//   use_model mlp.safetensors
//
// A run folder can be loaded as well, and COHORT_MODEL registers your own models, as for training. The second test uses a model of
// colour pictures.
//
// Test: cohort train --model mlp-small --data synthetic:1x28x28,samples=512 --steps 20 --run run && cohort checkpoint export run --out m.safetensors && use_model m.safetensors | tee out && [ $(wc -l <out) = 4 ] && use_model run/checkpoints/best | cmp - out
// Test: cohort train --model vgg11:width=2,hidden=8,norm=group --data synthetic:3x16x16,samples=256 --steps 8 --run run && use_model run
#include <torch/torch.h>

#include <cstdio>
#include <exception>

#include "cohort/cohort.h"

namespace {

/// Two pictures of any size, with values from 0 to 1.
torch::Tensor made_up_pictures(const cohort::DataDescription& data) {
  std::vector<int64_t> sizes = data.shape;
  sizes.insert(sizes.begin(), 2);
  return torch::arange(c10::multiply_integers(sizes), torch::kDouble).remainder(256).div(255).view(sizes);
}

void ask(const char* path) {
  const cohort::TrainedModel model = cohort::load(path);
  const torch::Tensor scores = model(model.normalised(made_up_pictures(model.data())));
  for (int64_t i = 0; i < scores.size(0); ++i) {
    const auto likeliest = scores[i].argmax().item<int64_t>();
    const auto& names = model.data().class_names;
    std::printf("picture %d: %s\n", static_cast<int>(i), names.empty() ? std::to_string(likeliest).c_str() : names[likeliest].c_str());
    for (int64_t c = 0; c < scores.size(1); ++c) std::printf("%.9g%c", scores[i][c].item<double>(), c + 1 < scores.size(1) ? ' ' : '\n');
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "use_model: give a FILE.safetensors of cohort checkpoint export, or a run folder\n");
    return 2;
  }
  try {
    ask(argv[1]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "use_model: %s\n", error.what());
    return 2;
  }
}
