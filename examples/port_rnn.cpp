// A port: a recurrent language model of characters, trained with truncated back-propagation: the hidden state is carried from one segment
// of text to the next, the gradient is not. The lines that differ from the program for one process end with `// Cohort`: each rank takes
// its own rows of the text once, before the loop, and so keeps the hidden state of its own rows; nothing of that state is ever exchanged.
// 15 rows on 2 ranks are 8 and 7: the gradient is the mean over all 15. Checks that the weights are those of training in one process.
//
// Test: port_rnn
// Test: port_rnn --workers 2
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>

#include "cohort/cohort.h"  // Cohort

namespace {

constexpr int kRows = 15, kPiece = 20, kEpochs = 3, kHidden = 64;

struct LanguageModelImpl : torch::nn::Module {
  torch::nn::Embedding embedding{nullptr};
  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear output{nullptr};
  explicit LanguageModelImpl(int64_t vocabulary) {
    embedding = register_module("embedding", torch::nn::Embedding(vocabulary, 32));
    lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(32, kHidden).num_layers(2).batch_first(true)));
    output = register_module("output", torch::nn::Linear(kHidden, vocabulary));
  }
  using Hidden = std::tuple<torch::Tensor, torch::Tensor>;
  std::pair<torch::Tensor, Hidden> forward(const torch::Tensor& x, const Hidden& hidden) {
    const auto [found, next] = lstm(embedding(x), hidden);
    return {output(found), next};
  }
  static Hidden zeros(int64_t rows) { return {torch::zeros({2, rows, kHidden}), torch::zeros({2, rows, kHidden})}; }
};
TORCH_MODULE(LanguageModel);

/// A repeated rhyme as numbers of characters, {rows, time}: each row is a part of the text.
torch::Tensor make_text(int64_t* vocabulary) {
  const std::string rhyme = "one for the master and one for the dame and one for the little boy who lives down the lane. ";
  std::string letters = rhyme;
  std::sort(letters.begin(), letters.end());
  letters.erase(std::unique(letters.begin(), letters.end()), letters.end());
  *vocabulary = static_cast<int64_t>(letters.size());
  std::vector<int64_t> numbers;
  while (numbers.size() < kRows * 401)
    for (const char letter : rhyme) numbers.push_back(static_cast<int64_t>(letters.find(letter)));
  return torch::tensor(numbers).narrow(0, 0, kRows * 401).view({kRows, 401});
}

torch::Tensor train(cohort::Session& session, bool prints) {  // Cohort
  torch::manual_seed(1);
  int64_t vocabulary = 0;
  const torch::Tensor text = session.local(make_text(&vocabulary));  // Cohort
  LanguageModel model(vocabulary);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(2));
  cohort::Parallel parallel(*model, session);  // Cohort

  const auto began = std::chrono::steady_clock::now();
  int num_steps = 0;
  for (int epoch = 1; epoch <= kEpochs; ++epoch) {
    auto hidden = LanguageModelImpl::zeros(text.size(0));
    double loss_sum = 0;
    int num_pieces = 0;
    for (int64_t at = 0; at + kPiece < text.size(1); at += kPiece, ++num_pieces, ++num_steps) {
      const torch::Tensor x = text.narrow(1, at, kPiece), y = text.narrow(1, at + 1, kPiece);
      hidden = {std::get<0>(hidden).detach(), std::get<1>(hidden).detach()};
      const auto [scores, next] = model->forward(x, hidden);
      hidden = next;
      const torch::Tensor loss = torch::cross_entropy_loss(scores.reshape({-1, vocabulary}), y.reshape({-1}));
      loss.backward();
      parallel.step(optimizer, {.clip_norm = 0.25});  // Cohort: clip_grad_norm_(), step(), zero_grad()
      loss_sum += loss.item<double>();
    }
    const double mean = session.mean(loss_sum / num_pieces);  // Cohort
    if (prints) std::printf("epoch %d loss %.6f perplexity %.3f\n", epoch, mean, std::exp(mean));
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  if (prints) std::printf("%.3f ms a step\n", 1e3 * seconds / num_steps);
  return torch::nn::utils::parameters_to_vector(model->parameters()).detach();
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
  return apart < 1e-3 ? 0 : 1;
}
