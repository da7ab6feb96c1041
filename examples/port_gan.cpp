// A port: a generator and a discriminator (DCGAN), each with an optimizer, that learn to draw blobs. The lines that differ from the program
// for one process end with `// Cohort`: a Parallel for each network, this rank's rows of the pictures and of the noise, and accumulate()
// around the backward() calls after which the discriminator does not step: the first of its two, and the generator's, whose gradients of
// the discriminator are not needed and so are not exchanged. Checks that the weights are those of training in one process.
//
// Test: port_gan
// Test: port_gan --workers 2
#include <torch/torch.h>

#include <chrono>
#include <cstdio>

#include "cohort/cohort.h"  // Cohort

namespace {

constexpr int kBatch = 30, kNoise = 8, kSteps = 40;

torch::nn::Sequential make_generator() {
  using torch::nn::ConvTranspose2dOptions;
  return torch::nn::Sequential(torch::nn::ConvTranspose2d(ConvTranspose2dOptions(kNoise, 32, 4).bias(false)), torch::nn::BatchNorm2d(32),
                               torch::nn::ReLU(), torch::nn::ConvTranspose2d(ConvTranspose2dOptions(32, 1, 4).stride(2).padding(1)),
                               torch::nn::Tanh());
}

torch::nn::Sequential make_discriminator() {
  using torch::nn::Conv2dOptions;
  const auto leaky = torch::nn::LeakyReLUOptions().negative_slope(0.2);
  return torch::nn::Sequential(torch::nn::Conv2d(Conv2dOptions(1, 16, 4).stride(2).padding(1)), torch::nn::LeakyReLU(leaky),
                               torch::nn::Conv2d(Conv2dOptions(16, 32, 3).padding(1).bias(false)), torch::nn::BatchNorm2d(32),
                               torch::nn::LeakyReLU(leaky), torch::nn::Conv2d(Conv2dOptions(32, 1, 4)),
                               torch::nn::Flatten(torch::nn::FlattenOptions().start_dim(0)));
}

/// Pictures of 8 x 8 with one blob at a random position.
torch::Tensor draw_blobs() {
  const torch::Tensor side = torch::arange(8).to(torch::kFloat), middle = 2 + 3 * torch::rand({2, kBatch, 1});
  const torch::Tensor across = torch::exp(-(side - middle[0]).square() / 3), down = torch::exp(-(side - middle[1]).square() / 3);
  return (2 * across.unsqueeze(1) * down.unsqueeze(2) - 1).unsqueeze(1);
}

/// The mean loss of the discriminator over the batch if all samples have the label `label`.
torch::Tensor loss_of(const torch::Tensor& scores, double label) {
  return torch::binary_cross_entropy_with_logits(scores, torch::full_like(scores, label));
}

/// Returns the generator's weights, before and after the training.
std::pair<torch::Tensor, torch::Tensor> train(cohort::Session& session, bool prints) {  // Cohort
  torch::manual_seed(1);
  torch::nn::Sequential generator = make_generator(), discriminator = make_discriminator();
  const auto options = torch::optim::AdamOptions(1e-3).betas({0.5, 0.999});
  torch::optim::Adam generator_optimizer(generator->parameters(), options), discriminator_optimizer(discriminator->parameters(), options);
  cohort::Parallel parallel_generator(*generator, session, {.sync_batch_norm = true});          // Cohort
  cohort::Parallel parallel_discriminator(*discriminator, session, {.sync_batch_norm = true});  // Cohort
  const auto weights = [&] { return torch::nn::utils::parameters_to_vector(generator->parameters()).detach().clone(); };
  const torch::Tensor before = weights();

  const auto began = std::chrono::steady_clock::now();
  for (int step = 1; step <= kSteps; ++step) {
    const torch::Tensor real = session.local(draw_blobs());                           // Cohort
    const torch::Tensor noise = session.local(torch::randn({kBatch, kNoise, 1, 1}));  // Cohort

    discriminator->zero_grad();  // Clears the gradients of the generator's step.
    const torch::Tensor loss_real = loss_of(discriminator->forward(real), 1);
    {
      const auto hold = parallel_discriminator.accumulate();  // Cohort
      loss_real.backward();
    }
    const torch::Tensor fake = generator->forward(noise);
    const torch::Tensor loss_fake = loss_of(discriminator->forward(fake.detach()), 0);
    loss_fake.backward();
    parallel_discriminator.step(discriminator_optimizer);  // Cohort

    const torch::Tensor loss_generator = loss_of(discriminator->forward(fake), 1);
    {
      const auto hold = parallel_discriminator.accumulate();  // Cohort
      loss_generator.backward();
    }
    parallel_generator.step(generator_optimizer);  // Cohort

    const torch::Tensor losses = session.mean(torch::stack({loss_real + loss_fake, loss_generator}));  // Cohort
    if (prints && step % 10 == 0)
      std::printf("step %d discriminator %.6f generator %.6f\n", step, losses[0].item<double>(), losses[1].item<double>());
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  if (prints) std::printf("%.3f ms a step\n", 1e3 * seconds / kSteps);
  return {before, weights()};
}

}  // namespace

int main(int argc, char** argv) {
  cohort::Session session = cohort::init(argc, argv);                     // Cohort
  const torch::Tensor found = train(session, session.is_first()).second;  // Cohort

  // Not part of the port: training in one process, repeated on every rank, must give the same weights.
  cohort::Session alone{cohort::World()};
  torch::set_num_threads(1);  // All ranks compute it at once.
  const auto [before, wanted] = train(alone, false);
  const double apart = ((found - wanted).norm() / (wanted - before).norm()).item<double>();
  if (session.is_first())
    std::printf("%d ranks: weights are apart from those of one process by %.1e of how far they moved\n", session.size(), apart);
  return apart < 1e-2 ? 0 : 1;
}
