// Evaluation. Rank r of p runs chunks r, r + p, ... of the samples; the sums of loss, errors, confusion counts, metrics and the most
// confident mistakes are exchanged in one all-reduce (8 bytes each), with a second exchange for the average precision of labels. Text is
// sampled token by token, each with a forward of the whole context.
#include "cohort/train/model/evaluate.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "cohort/base/random.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/train/model/batch_tensors.h"

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

bool is_scores(const at::Tensor& output, const at::Tensor& target, int64_t num_classes) {
  return output.defined() && output.dim() > 0 && output.size(-1) == num_classes && output.numel() == target.numel() * num_classes;
}

/// True if an error can be computed: from scores, or for numbers and labels from one number for each target.
bool is_answer(const at::Tensor& output, const at::Tensor& target, const DataShape& shape) {
  if (shape.has_numbers()) return output.defined() && output.numel() == target.numel();
  return is_scores(output, target, shape.num_classes);
}

/// The more confident mistake comes first, of two equal ones the earlier sample.
bool comes_before(const Mistake& a, const Mistake& b) {
  return a.probability != b.probability ? a.probability > b.probability : a.sample < b.sample;
}

/// The `most` most confident mistakes that were added.
class Mistakes {
 public:
  explicit Mistakes(int most) : most_(static_cast<size_t>(most)) {}

  /// Adds the mistakes of a chunk that begins at sample `first`. `scores`: {samples, classes}, in host memory.
  void add(int64_t first, const at::Tensor& scores, const at::Tensor& predicted, const at::Tensor& target) {
    if (most_ == 0) return;
    const at::Tensor probability = std::get<0>(at::softmax(scores, -1, at::kDouble).max(-1)).contiguous();
    const double* const sure = probability.data_ptr<double>();
    const int64_t* const guess = predicted.data_ptr<int64_t>();
    const int64_t* const label = target.data_ptr<int64_t>();
    for (int64_t i = 0; i < target.numel(); ++i)
      if (guess[i] != label[i] && std::isfinite(sure[i])) add({first + i, label[i], guess[i], sure[i]});
  }
  void add(const Mistake& mistake) {
    const auto place = std::upper_bound(kept_.begin(), kept_.end(), mistake, comes_before);
    if (place == kept_.end() && kept_.size() == most_) return;
    kept_.insert(place, mistake);
    if (kept_.size() > most_) kept_.pop_back();
  }

  /// Writes kNumbers numbers for each into the `rank`-th section of `all`.
  void write(double* all, int rank) const {
    double* out = all + static_cast<size_t>(rank) * most_ * kNumbers;
    for (const Mistake& each : kept_)
      for (const double value :
           {1.0, static_cast<double>(each.sample), static_cast<double>(each.label), static_cast<double>(each.predicted), each.probability})
        *out++ = value;
  }
  static std::vector<Mistake> read(const double* all, int64_t count, int most) {
    Mistakes found(most);
    for (const double* one = all; one != all + count * kNumbers; one += kNumbers)
      if (one[0] == 1) found.add({static_cast<int64_t>(one[1]), static_cast<int64_t>(one[2]), static_cast<int64_t>(one[3]), one[4]});
    return found.kept_;
  }

  static constexpr int64_t kNumbers = 5;

 private:
  size_t most_;
  std::vector<Mistake> kept_;
};

int64_t num_sums_of(const std::vector<NamedMetric>& metrics) {
  int64_t num_sums = 0;
  for (const NamedMetric& metric : metrics) num_sums += metric.num_sums;
  return num_sums;
}

/// Scores of classes that the data do not have are ignored.
void add_to_metrics(const std::vector<NamedMetric>& metrics, const at::Tensor& output, const at::Tensor& target, const DataShape& shape,
                    double* sums) {
  if (metrics.empty()) return;
  const at::Tensor targets = target.reshape({-1});
  const at::Tensor answers =
      shape.has_numbers() ? output.reshape({-1}) : output.reshape({targets.numel(), -1}).narrow(1, 0, shape.num_classes);
  for (const NamedMetric& metric : metrics) {
    metric.add(answers.to(at::kFloat), targets, sums);
    sums += metric.num_sums;
  }
}

/// `total` are the sums over all ranks: loss, errors, targets, confusion counts of `classes`, sums of metrics.
Evaluation evaluation_of(const double* total, int64_t classes, const DataShape& shape, const std::vector<NamedMetric>& metrics) {
  Evaluation result;
  result.num_targets = static_cast<int64_t>(total[2]);
  result.loss = total[0] / total[2];
  result.error = shape.regression ? std::sqrt(total[1] / total[2]) : total[1] / total[2];
  const double* of_metric = total + 3 + classes * classes;
  for (const NamedMetric& metric : metrics) {
    result.metrics[metric.name] = metric.value(of_metric);
    of_metric += metric.num_sums;
  }
  for (int64_t row = 0; row < classes && result.has_error(); ++row) {
    result.confusion.emplace_back();
    for (int64_t column = 0; column < classes; ++column)
      result.confusion.back().push_back(static_cast<int64_t>(total[3 + row * classes + column]));
  }
  return result;
}

}  // namespace

Evaluation evaluate(LayerGraph& model, const DataSource& source, Group& group, const EvaluationOptions& options) {
  at::NoGradGuard no_grad;
  const EvalMode mode(model);
  const DataShape& shape = source.shape();
  const int64_t classes = options.with_confusion && !shape.has_numbers() ? shape.num_classes : 0;
  const bool has_class = !shape.has_numbers() && shape.targets_per_sample() == 1;
  Mistakes mistakes(has_class ? options.num_mistakes : 0);
  LabelScores label_scores(source.num_samples(), shape.num_classes);
  // One vector, so that ranks exchange once: loss, errors, targets, confusion counts, sums of metrics.
  const int64_t first_metric = 3 + classes * classes;
  const at::Tensor sums_of_shares = at::zeros({options.num_shares, first_metric + num_sums_of(options.metrics)}, at::kDouble);
  const int64_t batch_size = options.batch_size, num_chunks = (source.num_samples() + batch_size - 1) / batch_size;
  const at::Device device = device_of(model);
  std::vector<int64_t> indices;
  Batch batch;
  if (options.begin) options.begin();
  for (int64_t chunk = options.index, number = 0; chunk < num_chunks; chunk += options.count, ++number) {
    const int64_t first = chunk * batch_size;
    double* const total = sums_of_shares.data_ptr<double>() + chunk % options.num_shares * sums_of_shares.size(1);
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
      if (!is_answer(logits, tensors.target, shape)) {
        total[1] = std::numeric_limits<double>::quiet_NaN();
        std::fill_n(total + first_metric, num_sums_of(options.metrics), total[1]);
        continue;
      }
    }
    logits = logits.cpu();
    add_to_metrics(options.metrics, logits, tensors.target, shape, total + first_metric);
    if (shape.labels) {
      total[1] += logits.gt(0).reshape({-1}).ne(tensors.target.gt(0).reshape({-1})).sum().item<double>();
      label_scores.add(first, logits, tensors.target);
      continue;
    }
    if (shape.regression) {
      total[1] += (logits.to(at::kDouble).reshape({-1}) - tensors.target.to(at::kDouble).reshape({-1})).square().sum().item<double>();
      continue;
    }
    if (!model.loss()) total[0] += cross_entropy(logits, tensors.target, /*sum=*/true, 0, model.title()).item<double>();
    const at::Tensor predicted = logits.argmax(-1).reshape({-1}).contiguous(), target = tensors.target.reshape({-1});
    total[1] += num_targets - predicted.eq(target).sum().item<double>();
    if (has_class) mistakes.add(first, logits.reshape({target.numel(), -1}), predicted, target.contiguous());
    if (classes > 0) {
      const int64_t* const guess = predicted.data_ptr<int64_t>();
      for (int64_t i = 0; i < target.numel(); ++i)  // A model may know more classes than the data has.
        if (guess[i] < classes) total[3 + batch.targets[static_cast<size_t>(i)] * classes + guess[i]] += 1;
    }
  }
  if (options.finish) options.finish();
  at::Tensor sums = sums_of_shares[0].clone();
  for (int share = 1; share < options.num_shares; ++share) sums.add_(sums_of_shares[share]);
  // Followed by a section for each rank's mistakes, so that one exchange is enough.
  const int64_t num_sums = sums.numel(), num_places = has_class ? int64_t{group.size()} * options.num_mistakes : 0;
  if (num_places > 0) {
    sums = at::cat({sums, at::zeros({num_places * Mistakes::kNumbers}, at::kDouble)});
    mistakes.write(sums.data_ptr<double>() + num_sums, group.rank());
  }
  group.all_reduce_sum(sums, "the sums of the evaluation");
  Evaluation result = evaluation_of(sums.data_ptr<double>(), classes, shape, options.metrics);
  if (shape.labels) {
    // All ranks exchange, whether or not the model has an error.
    const double precision = label_scores.mean_average_precision(group);
    if (result.has_error()) result.precision = precision;
  }
  if (num_places > 0) result.mistakes = Mistakes::read(sums.data_ptr<double>() + num_sums, num_places, options.num_mistakes);
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
  return is_answer(model.forward(tensors.input.to(device_of(model))), tensors.target, source.shape());
}

std::string first_text(const DataSource& source, size_t num_bytes) {
  const int64_t first = 0;
  Batch batch;
  source.read({&first, 1}, batch);
  if (const auto vocabulary = source.describe().vocabulary) return vocabulary->decode(batch.tokens).substr(0, num_bytes);
  std::string text;
  for (size_t i = 0; i < std::min(batch.tokens.size(), num_bytes); ++i) text += static_cast<char>(batch.tokens[i]);
  return text;
}

/// Draws a token with random number `number` of the seed.
static int64_t draw_token(const at::Tensor& scores, const TextSampling& how, int64_t number) {
  const at::Tensor sorted = scores.cpu().to(at::kDouble).contiguous();
  const double* const score = sorted.data_ptr<double>();
  std::vector<int64_t> tokens(static_cast<size_t>(sorted.numel()));
  std::iota(tokens.begin(), tokens.end(), 0);
  if (how.temperature == 0)
    return *std::max_element(tokens.begin(), tokens.end(), [&](int64_t a, int64_t b) { return score[a] < score[b]; });
  if (how.top_k > 0 && how.top_k < sorted.numel()) {
    std::stable_sort(tokens.begin(), tokens.end(), [&](int64_t a, int64_t b) { return score[a] > score[b]; });
    tokens.resize(static_cast<size_t>(how.top_k));
    std::sort(tokens.begin(), tokens.end());
  }
  const at::Tensor odds = at::softmax(sorted.index_select(0, at::tensor(tokens)) / how.temperature, -1).contiguous();
  const double* const p = odds.data_ptr<double>();
  double left = unit_interval(random_bits(how.seed, number));
  size_t place = 0;
  while (place + 1 < tokens.size() && left >= p[place]) left -= p[place++];
  return tokens[place];
}

std::optional<std::string> sample_text(LayerGraph& model, const DataShape& shape, const std::string& prompt, const TextSampling& how) {
  at::NoGradGuard no_grad;
  const EvalMode mode(model);
  const int64_t context = shape.input.at(0);
  const std::string begin = prompt.empty() ? "\n" : prompt;
  std::vector<Token> tokens;
  static const Vocabulary bytes_alone({});
  const Vocabulary& vocabulary = how.vocabulary ? *how.vocabulary : bytes_alone;
  TextEncoder(vocabulary).encode(begin, tokens);
  std::string text;
  for (int64_t n = 0; std::ssize(text) < how.num_bytes; ++n) {
    // The window holds the last tokens; the scores of its last used position are those of the next token.
    const int64_t length = std::min(context, std::ssize(tokens));
    at::Tensor window = at::zeros({1, context}, at::kLong);
    std::copy_n(tokens.end() - length, length, window.data_ptr<int64_t>());
    const at::Tensor scores = model.forward(window.to(device_of(model)));
    if (!is_scores(scores, window, shape.vocabulary()) || scores.dim() != 3) return std::nullopt;
    tokens.push_back(static_cast<Token>(draw_token(scores[0][length - 1], how, n)));
    for (const char byte : vocabulary.bytes_of(tokens.back())) {
      if (std::ssize(text) == how.num_bytes) break;
      text += byte;
      if (how.written) how.written(byte);
    }
  }
  return text;
}

}  // namespace cohort
