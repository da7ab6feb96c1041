#include "cohort/train/evaluate.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "cohort/base/random.h"
#include "cohort/train/batch_tensors.h"

namespace cohort {
namespace {

/// Eval mode for its lifetime.
class EvalMode {
 public:
  explicit EvalMode(torch::nn::Module& module) : module_(module), was_training_(module.is_training()) { module_.eval(); }
  ~EvalMode() { module_.train(was_training_); }

 private:
  torch::nn::Module& module_;
  bool was_training_;
};

at::Device device_of(const torch::nn::Module& model) {
  const std::vector<at::Tensor> parameters = model.parameters();
  return parameters.empty() ? at::Device(at::kCPU) : parameters.front().device();
}

/// One score a class for each target.
bool is_scores(const at::Tensor& output, const at::Tensor& target, int64_t num_classes) {
  return output.defined() && output.dim() > 0 && output.size(-1) == num_classes && output.numel() == target.numel() * num_classes;
}

}  // namespace

Evaluation evaluate(LayerGraph& model, const DataSource& source, Group& group, const EvaluationOptions& options) {
  at::NoGradGuard no_grad;
  const EvalMode mode(model);
  const DataShape& shape = source.shape();
  const int64_t classes = options.with_confusion ? shape.num_classes : 0;
  // One vector of sums, so that ranks exchange once: loss, errors, targets, then the confusion counts.
  at::Tensor sums = at::zeros({3 + classes * classes}, at::kDouble);
  double* const total = sums.data_ptr<double>();
  const int64_t batch_size = options.batch_size, num_chunks = (source.num_samples() + batch_size - 1) / batch_size;
  const at::Device device = device_of(model);
  std::vector<int64_t> indices;
  Batch batch;
  if (options.begin) options.begin();
  for (int64_t chunk = options.index, number = 0; chunk < num_chunks; chunk += options.count, ++number) {
    const int64_t first = chunk * batch_size;
    indices.resize(static_cast<size_t>(std::min(batch_size, source.num_samples() - first)));
    std::iota(indices.begin(), indices.end(), first);
    source.read(indices, batch);
    const BatchTensors tensors = as_tensors(batch, shape);
    const auto input = [&] { return tensors.input.to(device); };
    at::Tensor logits = options.forward ? options.forward(number, input) : model.forward(input());
    if (!logits.defined()) continue;
    const auto num_targets = static_cast<double>(tensors.target.numel());
    total[2] += num_targets;
    if (model.loss()) {
      total[0] += num_targets * mean_loss(model, logits, tensors.target.to(logits.device())).item<double>();
      if (!is_scores(logits, tensors.target, shape.num_classes)) {
        total[1] = std::numeric_limits<double>::quiet_NaN();
        continue;
      }
    }
    logits = logits.cpu();
    if (!model.loss()) total[0] += cross_entropy(logits, tensors.target, /*sum=*/true, 0, model.title()).item<double>();
    const at::Tensor predicted = logits.argmax(-1).reshape({-1}).contiguous(), target = tensors.target.reshape({-1});
    total[1] += num_targets - predicted.eq(target).sum().item<double>();
    if (classes > 0) {
      const int64_t* const guess = predicted.data_ptr<int64_t>();
      for (int64_t i = 0; i < target.numel(); ++i)  // A model may know more classes than the data has.
        if (guess[i] < classes) total[3 + batch.targets[static_cast<size_t>(i)] * classes + guess[i]] += 1;
    }
  }
  if (options.finish) options.finish();
  group.all_reduce_sum(sums, "the sums of the evaluation");
  Evaluation result;
  result.num_targets = static_cast<int64_t>(total[2]);
  result.loss = total[0] / total[2];
  result.error = total[1] / total[2];
  for (int64_t row = 0; row < classes && result.has_error(); ++row) {
    result.confusion.emplace_back();
    for (int64_t column = 0; column < classes; ++column)
      result.confusion.back().push_back(static_cast<int64_t>(total[3 + row * classes + column]));
  }
  return result;
}

bool gives_scores(LayerGraph& model, const DataSource& source) {
  at::NoGradGuard no_grad;
  const EvalMode mode(model);
  std::vector<int64_t> indices(static_cast<size_t>(std::min<int64_t>(2, source.num_samples())));
  std::iota(indices.begin(), indices.end(), 0);
  Batch batch;
  source.read(indices, batch);
  const BatchTensors tensors = as_tensors(batch, source.shape());
  return is_scores(model.forward(tensors.input.to(device_of(model))), tensors.target, source.shape().num_classes);
}

std::string first_text(const DataSource& source, size_t num_bytes) {
  const int64_t first = 0;
  Batch batch;
  source.read({&first, 1}, batch);
  std::string text;
  for (size_t i = 0; i < std::min(batch.tokens.size(), num_bytes); ++i) text += static_cast<char>(batch.tokens[i]);
  return text;
}

std::optional<std::string> sample_text(LayerGraph& model, const DataShape& shape, const std::string& prompt, int64_t num_bytes,
                                       double temperature, uint64_t seed) {
  at::NoGradGuard no_grad;
  const EvalMode mode(model);
  const int64_t context = shape.input.at(0);
  std::string text = prompt.empty() ? "\n" : prompt;
  const size_t prompt_bytes = text.size();
  for (int64_t n = 0; n < num_bytes; ++n) {
    // Models have a fixed context: the window holds the last bytes, and the position after them is asked.
    const int64_t length = std::min<int64_t>(context, static_cast<int64_t>(text.size()));
    at::Tensor window = at::zeros({1, context}, at::kLong);
    for (int64_t i = 0; i < length; ++i)
      window.data_ptr<int64_t>()[i] = static_cast<unsigned char>(text[text.size() - static_cast<size_t>(length - i)]);
    const at::Tensor scores = model.forward(window.to(device_of(model)));
    if (!is_scores(scores, window, shape.vocabulary()) || scores.dim() != 3) return std::nullopt;
    const at::Tensor odds = at::softmax(scores[0][length - 1].cpu().to(at::kDouble) / temperature, -1).contiguous();
    const double* const p = odds.data_ptr<double>();
    double left = unit_interval(random_bits(seed, n));
    int64_t byte = 0;
    while (byte + 1 < odds.numel() && left >= p[byte]) left -= p[byte++];
    text += static_cast<char>(byte);
  }
  return text.substr(prompt_bytes);
}

}  // namespace cohort
