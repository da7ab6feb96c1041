#include "cohort/models/metric/metrics.h"

#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <doctest/doctest.h>
#include <torch/utils.h>

#include <cmath>
#include <set>
#include <vector>

#include "cohort/models/metric/own_metrics.h"
#include "tests/support/errors.h"

namespace cohort {
namespace {

const DataShape kClasses{.input = {4}, .num_classes = 7};
const DataShape kNumbers{.input = {4}, .num_classes = 1, .regression = true};

/// Evaluates in chunks, as ranks do.
double value_of(const std::string& name, const DataShape& data, const at::Tensor& output, const at::Tensor& target, int64_t chunk) {
  const std::vector<NamedMetric> metrics = named_metrics(name, data);
  REQUIRE(metrics.size() == 1);
  CHECK(metrics[0].name == name);
  std::vector<double> sums(static_cast<size_t>(metrics[0].num_sums));
  for (int64_t first = 0; first < target.size(0); first += chunk) {
    const int64_t count = std::min(chunk, target.size(0) - first);
    metrics[0].add(output.narrow(0, first, count), target.narrow(0, first, count), sums.data());
  }
  return metrics[0].value(sums.data());
}

TEST_CASE("named metrics: each is its definition, by hand, however the samples are divided") {
  torch::manual_seed(4);
  constexpr int64_t kSamples = 60, kKinds = 7;
  const at::Tensor scores = at::randn({kSamples, kKinds}),
                   target = at::randint(kKinds - 1, {kSamples}, at::kLong);  // None of the last class.
  std::vector<double> targets(kKinds), guesses(kKinds), right(kKinds);
  double missed = 0, nats = 0;
  for (int64_t row = 0; row < kSamples; ++row) {
    const int64_t label = target[row].item<int64_t>();
    const double own = scores[row][label].item<double>();
    int64_t better = 0, best = 0;
    double sum = 0;
    for (int64_t k = 0; k < kKinds; ++k) {
      const double score = scores[row][k].item<double>();
      if (score > own) ++better;
      if (score > scores[row][best].item<double>()) best = k;
      sum += std::exp(score);
    }
    missed += better >= 5;
    nats += std::log(sum) - own;
    ++targets[label], ++guesses[best], right[label] += best == label;
  }
  double recall = 0, f1 = 0;
  int64_t with_targets = 0, with_any = 0;
  for (int64_t k = 0; k < kKinds; ++k) {
    if (targets[k] > 0) recall += right[k] / targets[k], ++with_targets;
    if (targets[k] + guesses[k] > 0) f1 += 2 * right[k] / (targets[k] + guesses[k]), ++with_any;
  }
  for (const int64_t chunk : {kSamples, int64_t{7}, int64_t{1}}) {
    CAPTURE(chunk);
    CHECK(value_of("top5-error", kClasses, scores, target, chunk) == doctest::Approx(missed / kSamples));
    CHECK(value_of("balanced-error", kClasses, scores, target, chunk) == doctest::Approx(1 - recall / with_targets));
    CHECK(value_of("f1", kClasses, scores, target, chunk) == doctest::Approx(f1 / with_any));
    CHECK(value_of("perplexity", kClasses, scores, target, chunk) == doctest::Approx(std::exp(nats / kSamples)).epsilon(1e-5));
  }
  const at::Tensor output = at::randn({kSamples}), numbers = at::randn({kSamples});
  double distance = 0, squares = 0, mean = 0, all = 0;
  for (int64_t row = 0; row < kSamples; ++row) mean += numbers[row].item<double>() / kSamples;
  for (int64_t row = 0; row < kSamples; ++row) {
    const double error = output[row].item<double>() - numbers[row].item<double>(), away = numbers[row].item<double>() - mean;
    distance += std::abs(error), squares += error * error, all += away * away;
  }
  for (const int64_t chunk : {kSamples, int64_t{7}}) {
    CHECK(value_of("mae", kNumbers, output, numbers, chunk) == doctest::Approx(distance / kSamples));
    CHECK(value_of("r2", kNumbers, output, numbers, chunk) == doctest::Approx(1 - squares / all));
  }
}

TEST_CASE("named metrics: unknown names, and metrics for other data, are refused") {
  const auto refusal = [](const std::string& names, const DataShape& data) { return error_of([&] { named_metrics(names, data); }); };
  CHECK(named_metrics("", kClasses).empty());
  CHECK(named_metrics("f1, perplexity", kClasses).size() == 2);
  CHECK(refusal("f2", kClasses).find("did you mean 'f1'") != std::string::npos);
  CHECK(refusal("f1,", kClasses).find("is not a metric") != std::string::npos);
  CHECK(refusal("f1,f1", kClasses).find("twice") != std::string::npos);
  CHECK(refusal("mae", kClasses).find("these data have classes") != std::string::npos);
  CHECK(refusal("f1", kNumbers).find("numbers to predict") != std::string::npos);
}

TEST_CASE("named metrics: a user's metric is the mean of its numbers") {
  register_metric("test-own", [](const at::Tensor& output, const at::Tensor& target) { return output.argmax(1).eq(target); });
  register_metric("test-wrong", [](const at::Tensor& output, const at::Tensor&) { return output; });
  CHECK(error_of([] { register_metric("test-own", {}); }).find("is taken") != std::string::npos);
  CHECK(error_of([] { register_metric("f1", {}); }).find("is taken") != std::string::npos);
  CHECK(error_of([] { register_metric("No Name", {}); }).find("a-z") != std::string::npos);
  const at::Tensor scores = at::randn({9, 7}), target = at::randint(7, {9}, at::kLong);
  const double wanted = scores.argmax(1).eq(target).to(at::kDouble).mean().item<double>();
  CHECK(value_of("test-own", kClasses, scores, target, 4) == doctest::Approx(wanted));
  CHECK(error_of([&] { value_of("test-wrong", kClasses, scores, target, 9); }).find("one number for each target") != std::string::npos);
}

}  // namespace
}  // namespace cohort
