// A port: proximal policy optimization (PPO) of an actor and a critic on a small environment. The lines that differ from the program for
// one process end with `// Cohort`: each rank steps its own environments, advantages are normalised with the mean and deviation of all
// ranks, and the early stop looks at all ranks' divergence, so that all stop together. Random numbers are drawn for all environments, the
// same on all ranks, and each takes its rows. 9 environments on 2 ranks are 5 and 4. Checks that the weights are those of training in one
// process.
//
// Test: port_ppo
// Test: port_ppo --workers 2
#include <torch/torch.h>

#include <chrono>
#include <cstdio>

#include "cohort/cohort.h"  // Cohort

namespace {

constexpr int kEnvironments = 9, kHorizon = 32, kIterations = 40, kEpochs = 4, kParts = 4, kActions = 3;
constexpr double kDiscount = 0.95, kLambda = 0.95, kClip = 0.2, kLargestDivergence = 0.03;

/// Points with a velocity on a line, {environments, 2}; pushes to the left or right shall bring them to 0.
struct Environments {
  torch::Tensor state;
  /// Returns the rewards.
  torch::Tensor step(const torch::Tensor& action) {
    const torch::Tensor velocity = 0.9 * state.select(1, 1) + 0.1 * (action - 1), position = state.select(1, 0) + 0.3 * velocity;
    state = torch::stack({position, velocity}, 1);
    return -position.abs();
  }
};

struct ActorCriticImpl : torch::nn::Module {
  torch::nn::Linear body{nullptr}, actor{nullptr}, critic{nullptr};
  ActorCriticImpl() {
    body = register_module("body", torch::nn::Linear(2, 32));
    actor = register_module("actor", torch::nn::Linear(32, kActions));
    critic = register_module("critic", torch::nn::Linear(32, 1));
    to(torch::kDouble);  // Rounding must not select another action.
  }
  /// Logarithms of probabilities, and values.
  std::pair<torch::Tensor, torch::Tensor> forward(const torch::Tensor& state) {
    const torch::Tensor features = torch::tanh(body(state));
    return {torch::log_softmax(actor(features), -1), critic(features).squeeze(-1)};
  }
};
TORCH_MODULE(ActorCritic);

torch::Tensor logarithm_of(const torch::Tensor& all, const torch::Tensor& action) {
  return all.gather(-1, action.unsqueeze(-1)).squeeze(-1);
}

torch::Tensor train(cohort::Session& session, bool prints) {  // Cohort
  torch::manual_seed(1);
  ActorCritic net;
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));
  cohort::Parallel parallel(*net, session);  // Cohort
  const auto began = std::chrono::steady_clock::now();
  int num_steps = 0;
  for (int iteration = 1; iteration <= kIterations; ++iteration) {
    std::vector<torch::Tensor> states, actions, logarithms, values, rewards, advantages(kHorizon);
    Environments environments{session.local(2 * torch::rand({kEnvironments, 2}, torch::kDouble) - 1)};  // Cohort
    {
      torch::NoGradGuard no_grad;
      for (int t = 0; t < kHorizon; ++t) {
        const auto [all, value] = net->forward(environments.state);
        const torch::Tensor chance = session.local(torch::rand({kEnvironments, 1}, torch::kDouble));  // Cohort
        const torch::Tensor action = (chance > all.exp().cumsum(1)).sum(1).clamp_max(kActions - 1);
        states.push_back(environments.state), actions.push_back(action), values.push_back(value);
        logarithms.push_back(logarithm_of(all, action)), rewards.push_back(environments.step(action));
      }
      values.push_back(net->forward(environments.state).second);
      torch::Tensor advantage = torch::zeros_like(values[0]);
      for (int t = kHorizon; t-- > 0; advantages[t] = advantage)
        advantage = rewards[t] + kDiscount * values[t + 1] - values[t] + kDiscount * kLambda * advantage;
    }
    values.pop_back();
    const torch::Tensor state = torch::stack(states), action = torch::stack(actions), before = torch::stack(logarithms);
    torch::Tensor advantage = torch::stack(advantages);
    const torch::Tensor target = advantage + torch::stack(values);
    const torch::Tensor mean = session.mean(advantage.mean());                                // Cohort: of all environments
    const torch::Tensor deviation = session.mean((advantage - mean).square().mean()).sqrt();  // Cohort
    advantage = (advantage - mean) / (deviation + 1e-8);

    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      torch::Tensor divergence;
      for (const torch::Tensor& part : torch::randperm(kHorizon).chunk(kParts)) {
        const auto [all, value] = net->forward(state.index_select(0, part));
        const torch::Tensor change = logarithm_of(all, action.index_select(0, part)) - before.index_select(0, part), ratio = change.exp();
        const torch::Tensor a = advantage.index_select(0, part), clipped = ratio.clamp(1 - kClip, 1 + kClip);
        const torch::Tensor entropy = -(all.exp() * all).sum(-1).mean();
        const torch::Tensor loss =
            torch::mse_loss(value, target.index_select(0, part)) / 2 - torch::min(ratio * a, clipped * a).mean() - 0.01 * entropy;
        loss.backward();
        parallel.step(optimizer, {.clip_norm = 0.5});  // Cohort: clip_grad_norm_(), step(), zero_grad()
        divergence = (ratio - 1 - change).mean();
        ++num_steps;
      }
      if (session.mean(divergence.item<double>()) > kLargestDivergence) break;  // Cohort: all ranks or none
    }
    const double reward = session.mean(torch::stack(rewards).mean().item<double>());  // Cohort
    if (prints && iteration % 8 == 0) std::printf("iteration %d mean reward %.6f\n", iteration, reward);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  if (prints) std::printf("%.3f ms a step\n", 1e3 * seconds / num_steps);
  return torch::nn::utils::parameters_to_vector(net->parameters()).detach();
}

}  // namespace

int main(int argc, char** argv) {
  cohort::Session session = cohort::init(argc, argv);              // Cohort
  const torch::Tensor found = train(session, session.is_first());  // Cohort

  // Not part of the port: training in one process, repeated on every rank, must give the same weights.
  cohort::Session alone{cohort::World()};
  torch::set_num_threads(1);  // All ranks compute it at once.
  const double apart = (found - train(alone, false)).abs().max().item<double>();
  if (session.is_first()) std::printf("%d ranks: weights are at most %.1e from those of one process\n", session.size(), apart);
  return apart < 1e-6 ? 0 : 1;
}
