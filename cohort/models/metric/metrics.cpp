// Named metrics:
//
//   top5-error       classes: fraction of targets whose class is not among the five likeliest (0 with fewer than six classes)
//   balanced-error   classes: 1 - the mean recall of the classes; classes without targets do not count
//   f1               classes: mean over classes of 2 right / (targets + guesses), the macro F1 score; classes with neither do not count
//   perplexity       classes: exp of the mean cross-entropy
//   mae              numbers: mean of |output - target|, in standard deviations of the training's targets
//   r2               numbers: 1 - sum of squared errors / sum of squared distances of the targets from their mean
//
// and those that COHORT_METRIC registers.
//
// Average precision measures how well the scores of a label rank the samples that have it before the others, whatever the threshold. With
// samples in descending order of their scores, the n-th threshold takes all samples with at least the n-th largest of the different scores;
// samples with equal scores are taken together, so their order does not matter. With precision P_n, the fraction of those taken that have
// the label, and recall R_n, the fraction of those with the label that are taken,
//
//   AP = sum over n of (R_n - R_{n-1}) P_n,   R_0 = 0
//
// without interpolation, as in scikit-learn's average_precision_score. The mean over labels (its average="macro") counts only labels that
// some evaluated sample has and some has not, as init2winit and the Open Graph Benchmark do; for the others every order is as good. Scores
// are compared as the model gives them: a sigmoid in fp32 would make large ones equal.
//
// Ranks keep the scores of the samples that they evaluated and exchange them in blocks of labels: an all-reduce of {samples, labels}
// numbers of which all but one rank's are 0, which is exact, so the value is the same bit for bit for any number of ranks. Each label is
// then sorted by one rank. Memory: 5 bytes a sample and label on the rank that evaluated it, and during the exchange at most 32 MiB, or 8
// bytes a sample where that is more. Messages: 8 bytes a sample and label through an all-reduce. Time: a sort of the samples for each
// label.
#include "cohort/models/metric/metrics.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/models/graph/model_errors.h"
#include "cohort/models/metric/own_metrics.h"

namespace cohort {
namespace {

enum class Kind { kClasses, kNumbers, kLabels };

struct Known {
  Kind kind;
  NamedMetric (*make)(int64_t num_classes);
};

double sum_of(const at::Tensor& numbers) { return numbers.to(at::kDouble).sum().item<double>(); }

double mean_or_nan(double sum, double count) { return count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN(); }

/// The mean over targets; `each` returns the sum over a chunk.
NamedMetric mean_metric(
    std::function<double(const at::Tensor&, const at::Tensor&)> each,
    const std::function<double(double)>& of_mean = [](double mean) { return mean; }) {
  return {.num_sums = 2,
          .add =
              [each = std::move(each)](const at::Tensor& output, const at::Tensor& target, double* sums) {
                sums[0] += each(output, target);
                sums[1] += static_cast<double>(target.size(0));
              },
          .value = [of_mean](const double* sums) { return of_mean(mean_or_nan(sums[0], sums[1])); }};
}

/// Adds three sums for each class: targets, guesses, right guesses.
void add_counts(const at::Tensor& output, const at::Tensor& target, int64_t num_classes, double* sums) {
  const at::Tensor guess = output.argmax(1);
  const at::Tensor counted[] = {target, guess, target.masked_select(guess.eq(target))};
  for (int64_t kind = 0; kind < 3; ++kind) {
    const at::Tensor counts = at::bincount(counted[kind], {}, num_classes).to(at::kDouble).contiguous();
    for (int64_t each = 0; each < num_classes; ++each) sums[kind * num_classes + each] += counts.data_ptr<double>()[each];
  }
}

/// The mean of `of_class(targets, guesses, right)` over the classes for which it is a number.
NamedMetric class_mean(int64_t num_classes, double (*of_class)(double, double, double), bool is_error) {
  return {.num_sums = 3 * num_classes,
          .add = [num_classes](const at::Tensor& output, const at::Tensor& target,
                               double* sums) { add_counts(output, target, num_classes, sums); },
          .value =
              [=](const double* sums) {
                double total = 0, count = 0;
                for (int64_t each = 0; each < num_classes; ++each)
                  if (const double one = of_class(sums[each], sums[num_classes + each], sums[2 * num_classes + each]); !std::isnan(one))
                    total += one, ++count;
                const double mean = mean_or_nan(total, count);
                return is_error ? 1 - mean : mean;
              }};
}

double recall(double targets, double /*guesses*/, double right) { return mean_or_nan(right, targets); }
double f1(double targets, double guesses, double right) { return mean_or_nan(2 * right, targets + guesses); }

double missed_by_top5(const at::Tensor& output, const at::Tensor& target) {
  const at::Tensor likeliest = std::get<1>(at::topk(output, std::min<int64_t>(5, output.size(1)), 1));
  return static_cast<double>(target.size(0)) - sum_of(likeliest.eq(target.unsqueeze(1)).any(1));
}

double sum_of_cross_entropy(const at::Tensor& output, const at::Tensor& target) {
  return at::cross_entropy_loss(output.to(at::kDouble), target, {}, at::Reduction::Sum).item<double>();
}

double sum_of_distances(const at::Tensor& output, const at::Tensor& target) {
  return sum_of((output.to(at::kDouble) - target.to(at::kDouble)).abs());
}

/// Sums: squares of errors, targets, squares of targets, count. Targets lie around 0 with a deviation near 1, so there is no cancellation.
NamedMetric r2(int64_t /*num_classes*/) {
  return {.num_sums = 4,
          .add =
              [](const at::Tensor& output, const at::Tensor& target, double* sums) {
                const at::Tensor exact = target.to(at::kDouble);
                sums[0] += sum_of((output.to(at::kDouble) - exact).square());
                sums[1] += sum_of(exact);
                sums[2] += sum_of(exact.square());
                sums[3] += static_cast<double>(target.size(0));
              },
          .value =
              [](const double* sums) {
                const double squares = sums[2] - sums[1] * sums[1] / sums[3];
                return squares > 0 ? 1 - sums[0] / squares : std::numeric_limits<double>::quiet_NaN();
              }};
}

const std::map<std::string, Known>& known_metrics() {
  static const std::map<std::string, Known> known = {
      {"top5-error", {Kind::kClasses, [](int64_t) { return mean_metric(missed_by_top5); }}},
      {"balanced-error", {Kind::kClasses, [](int64_t classes) { return class_mean(classes, recall, true); }}},
      {"f1", {Kind::kClasses, [](int64_t classes) { return class_mean(classes, f1, false); }}},
      {"perplexity",
       {Kind::kClasses, [](int64_t) { return mean_metric(sum_of_cross_entropy, [](double mean) { return std::exp(mean); }); }}},
      {"mae", {Kind::kNumbers, [](int64_t) { return mean_metric(sum_of_distances); }}},
      {"r2", {Kind::kNumbers, r2}}};
  return known;
}

std::map<std::string, MetricFunction>& own_metrics() {
  static std::map<std::string, MetricFunction> own;
  return own;
}

NamedMetric own_metric(const std::string& name, const MetricFunction& function) {
  return mean_metric([name, function](const at::Tensor& output, const at::Tensor& target) {
    const at::Tensor each = function(output, target);
    if (!each.defined() || each.numel() != target.numel())
      fail(ErrorCode::kBadInput, "the metric ", name, " gave ", describe_tensor(each), " for the targets ", describe_tensor(target),
           "; let it give one number for each target");
    return sum_of(each);
  });
}

std::vector<std::string> names_for(Kind kind) {
  std::vector<std::string> names;
  for (const auto& [name, known] : known_metrics())
    if (known.kind == kind) names.push_back(name);
  for (const auto& [name, function] : own_metrics()) names.push_back(name);
  return names;
}

/// The end of a refusal: the metrics for data of that kind.
std::string list_for(Kind kind) {
  const std::vector<std::string> names = names_for(kind);
  return names.empty() ? "; for these data there are only metrics that COHORT_METRIC registers"
                       : "; for these data there are: " + join(names, " ");
}

NamedMetric named_metric(const std::string& name, const DataShape& data) {
  const Kind kind = data.regression ? Kind::kNumbers : data.labels ? Kind::kLabels : Kind::kClasses;
  const auto known = known_metrics().find(name);
  const auto own = own_metrics().find(name);
  if (known == known_metrics().end() && own == own_metrics().end())
    fail(ErrorCode::kBadInput, name_settings("--metrics "), quote_text(name), " is not a metric", did_you_mean(name, names_for(kind)),
         list_for(kind));
  if (own == own_metrics().end() && known->second.kind != kind)
    fail(ErrorCode::kBadInput, name_settings("--metrics "), name,
         known->second.kind == Kind::kNumbers ? " is for numbers" : " is for classes", ", and these data have ",
         data.regression ? "numbers to predict"
         : data.labels   ? "labels"
                         : "classes",
         list_for(kind));
  NamedMetric metric = own != own_metrics().end() ? own_metric(name, own->second) : known->second.make(data.num_classes);
  metric.name = name;
  return metric;
}

}  // namespace

std::vector<NamedMetric> named_metrics(const std::string& names, const DataShape& data) {
  std::vector<NamedMetric> metrics;
  if (names.empty()) return metrics;
  for (const std::string& part : split(names, ',')) {
    const std::string name = trim(part);
    for (const NamedMetric& before : metrics)
      if (before.name == name) fail(ErrorCode::kBadInput, name_settings("--metrics "), name, " is given twice");
    metrics.push_back(named_metric(name, data));
  }
  return metrics;
}

void register_metric(const std::string& name, MetricFunction function) {
  const bool is_name = !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::islower(c) || std::isdigit(c) || c == '-' || c == '_';
  });
  if (!is_name) fail(ErrorCode::kBadInput, "a metric cannot be called ", quote_text(name), "; use a-z, 0-9, - and _");
  if (name == "loss" || name.starts_with("val_") || known_metrics().contains(name) ||
      !own_metrics().emplace(name, std::move(function)).second)
    fail(ErrorCode::kBadInput, "the metric name ", name, " is taken");
}

constexpr int64_t kBlockNumbers = 1 << 23;  // Floats of one exchange.

std::optional<double> average_precision(std::span<const float> scores, std::span<const float> has_label) {
  std::vector<std::pair<float, bool>> ranked;
  ranked.reserve(scores.size());
  int64_t with_label = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (std::isnan(scores[i])) return std::numeric_limits<double>::quiet_NaN();
    ranked.emplace_back(scores[i], has_label[i] == 1);
    with_label += has_label[i] == 1;
  }
  if (with_label == 0 || with_label == std::ssize(ranked)) return std::nullopt;
  std::sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  double sum = 0;
  int64_t taken = 0, right = 0;
  for (size_t at = 0; at < ranked.size();) {
    const float threshold = ranked[at].first;
    int64_t more_right = 0;
    for (; at < ranked.size() && ranked[at].first == threshold; ++at) ++taken, more_right += ranked[at].second;
    right += more_right;
    sum += static_cast<double>(more_right) * (static_cast<double>(right) / static_cast<double>(taken));
  }
  return sum / static_cast<double>(with_label);
}

void LabelScores::add(int64_t first, const at::Tensor& scores, const at::Tensor& labels) {
  const int64_t count = labels.numel() / num_labels_;
  // Copies: the memory of a batch is reused.
  chunks_.push_back({first, scores.reshape({count, num_labels_}).to(at::kFloat, false, /*copy=*/true).contiguous(),
                     labels.reshape({count, num_labels_}).to(at::kByte, false, /*copy=*/true).contiguous()});
}

/// {labels, 2, samples}: scores and labels of this rank's samples, 0 for the others.
at::Tensor LabelScores::block_of(int64_t first_label, int64_t num_labels) const {
  at::Tensor block = at::zeros({num_labels * 2 * num_samples_}, at::kFloat);
  float* const out = block.mutable_data_ptr<float>();
  for (const Chunk& chunk : chunks_) {
    const float* const scores = chunk.scores.const_data_ptr<float>();
    const uint8_t* const labels = chunk.labels.const_data_ptr<uint8_t>();
    for (int64_t row = 0; row < chunk.scores.size(0); ++row) {
      for (int64_t k = 0; k < num_labels; ++k) {
        const int64_t from = row * num_labels_ + first_label + k, to = 2 * k * num_samples_ + chunk.first + row;
        out[to] = scores[from];
        out[to + num_samples_] = labels[from];
      }
    }
  }
  return block;
}

double LabelScores::mean_average_precision(Group& group) const {
  const auto samples = static_cast<size_t>(num_samples_);
  const int64_t labels_of_block = std::clamp<int64_t>(kBlockNumbers / 2 / std::max<int64_t>(1, num_samples_), 1, num_labels_);
  // For each label its average precision and whether it has one.
  at::Tensor found = at::zeros({2 * num_labels_}, at::kDouble);
  double* const values = found.mutable_data_ptr<double>();
  for (int64_t first = 0; first < num_labels_; first += labels_of_block) {
    const int64_t count = std::min(labels_of_block, num_labels_ - first);
    at::Tensor block = block_of(first, count);
    if (group.size() > 1) group.all_reduce_sum(block, "the scores of labels");
    for (int64_t k = 0; k < count; ++k) {
      if ((first + k) % group.size() != group.rank()) continue;
      const float* const scores = block.const_data_ptr<float>() + 2 * k * num_samples_;
      const std::optional<double> value = average_precision({scores, samples}, {scores + num_samples_, samples});
      if (value) values[2 * (first + k)] = *value, values[2 * (first + k) + 1] = 1;
    }
  }
  if (group.size() > 1) group.all_reduce_sum(found, "the average precision of labels");
  double sum = 0, count = 0;
  for (int64_t k = 0; k < num_labels_; ++k) sum += values[2 * k], count += values[2 * k + 1];
  return count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace cohort
