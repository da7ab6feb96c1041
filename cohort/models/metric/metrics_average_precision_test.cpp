#include "cohort/models/metric/metrics.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "tests/support/thread_ranks.h"

namespace cohort {
namespace {

double of(const std::vector<float>& scores, const std::vector<float>& labels) { return average_precision(scores, labels).value(); }

/// From the definition: precision and recall at each different score.
double by_thresholds(const at::Tensor& scores, const at::Tensor& labels) {
  std::vector<float> thresholds(scores.const_data_ptr<float>(), scores.const_data_ptr<float>() + scores.numel());
  std::sort(thresholds.rbegin(), thresholds.rend());
  thresholds.erase(std::unique(thresholds.begin(), thresholds.end()), thresholds.end());
  double sum = 0, before = 0;
  for (const float threshold : thresholds) {
    const at::Tensor taken = scores.ge(threshold);
    const double right = labels.masked_select(taken).sum().item<double>(), recall = right / labels.sum().item<double>();
    sum += (recall - before) * right / taken.sum().item<double>();
    before = recall;
  }
  return sum;
}

/// Few different scores, so many are equal; no sample has the last label.
struct Made {
  at::Tensor scores, labels;
};
Made made(int64_t samples, int64_t num_labels) {
  torch::manual_seed(6);
  Made out{at::randint(8, {samples, num_labels}, at::TensorOptions(at::kFloat)), at::rand({samples, num_labels}).lt(0.3).to(at::kFloat)};
  out.labels.narrow(1, num_labels - 1, 1).zero_();
  return out;
}

TEST_CASE("average precision: by hand") {
  // Right ones at places 1 and 3 of 4: (1/1 + 2/3) / 2.
  CHECK(of({0.9F, 0.8F, 0.7F, 0.1F}, {1, 0, 1, 0}) == (1.0 + 2.0 / 3) / 2);
  CHECK(of({0.1F, 0.7F, 0.8F, 0.9F}, {0, 1, 0, 1}) == (1.0 + 2.0 / 3) / 2);
  CHECK(of({3, 2, 1}, {1, 1, 0}) == 1);
  CHECK(of({3, 2, 1}, {0, 0, 1}) == 1.0 / 3);
  // scikit-learn's own example.
  CHECK(of({0.1F, 0.4F, 0.35F, 0.8F}, {0, 0, 1, 1}) == doctest::Approx(0.8333333333));
}

TEST_CASE("average precision: equal scores are taken together, in whatever order they stand") {
  // All alike: the share that has the label. A tie in the middle: 1/1 for the first, then 2 of 3 for the next.
  CHECK(of({1, 1, 1, 1}, {1, 0, 0, 0}) == 0.25);
  CHECK(of({1, 1, 1, 1}, {0, 0, 0, 1}) == 0.25);
  CHECK(of({5, 2, 2, 1}, {1, 1, 0, 0}) == (1.0 + 2.0 / 3) / 2);
  CHECK(of({5, 2, 2, 1}, {1, 0, 1, 0}) == (1.0 + 2.0 / 3) / 2);
  CHECK(of({0.0F, -0.0F}, {1, 0}) == 0.5);
  const Made each = made(101, 2);
  const at::Tensor scores = each.scores.select(1, 0).contiguous(), labels = each.labels.select(1, 0).contiguous();
  const auto span = [](const at::Tensor& values) {
    return std::span<const float>(values.const_data_ptr<float>(), static_cast<size_t>(values.numel()));
  };
  CHECK(average_precision(span(scores), span(labels)).value() == doctest::Approx(by_thresholds(scores, labels)).epsilon(1e-12));
  CHECK(average_precision(span(scores.flip(0).contiguous()), span(labels.flip(0).contiguous())) ==
        average_precision(span(scores), span(labels)));
}

TEST_CASE("average precision: undefined for a label that no or every sample has, NaN for a NaN score") {
  const std::vector<float> scores{1, 2};
  CHECK(!average_precision(scores, std::vector<float>{0, 0}));
  CHECK(!average_precision(scores, std::vector<float>{1, 1}));
  CHECK(std::isnan(of({1, std::numeric_limits<float>::quiet_NaN()}, {1, 0})));
  CHECK(of({1, -std::numeric_limits<float>::infinity()}, {1, 0}) == 1);
}

TEST_CASE("label scores: the mean over the labels that have one, the same bits however the samples lie on ranks") {
  constexpr int64_t kSamples = 57, kLabels = 5;
  const Made all = made(kSamples, kLabels);
  double expected = 0;
  for (int64_t k = 0; k + 1 < kLabels; ++k)
    expected += by_thresholds(all.scores.select(1, k).contiguous(), all.labels.select(1, k).contiguous()) / (kLabels - 1);
  Group alone;
  LabelScores whole(kSamples, kLabels);
  whole.add(0, all.scores, all.labels);
  const double mean = whole.mean_average_precision(alone);
  CHECK(mean == doctest::Approx(expected).epsilon(1e-12));
  // More ranks than labels, too; one has no sample. Half precision is what the model may give.
  for (const int num_ranks : {2, 3, 7}) {
    run_thread_ranks(num_ranks, [&](Group& group) {
      LabelScores own(kSamples, kLabels);
      for (int64_t first = 0, chunk = 0; first < kSamples; first += 10, ++chunk) {
        if (chunk % std::max(1, group.size() - 1) != group.rank()) continue;
        const int64_t count = std::min<int64_t>(10, kSamples - first);
        own.add(first, all.scores.narrow(0, first, count).to(at::kBFloat16), all.labels.narrow(0, first, count));
      }
      if (own.mean_average_precision(group) != mean) throw std::runtime_error("another mean than that of one rank");
    });
  }
  LabelScores none(3, 1);
  none.add(0, at::zeros({3, 1}), at::zeros({3, 1}));
  CHECK(std::isnan(none.mean_average_precision(alone)));
}

TEST_CASE("label scores: blocks of labels are put together") {
  // 2^22 numbers of scores are one block: three labels of more than half as many samples are three blocks.
  constexpr int64_t kSamples = (1 << 21) + 3;
  const at::Tensor scores = at::zeros({kSamples, 3}), labels = at::zeros({kSamples, 3});
  scores.select(1, 1).narrow(0, 5, 2).fill_(1);  // Two before the others, of which one is right.
  for (int64_t k = 0; k < 3; ++k) labels.select(1, k).narrow(0, 5, 1).fill_(1);
  Group alone;
  LabelScores all(kSamples, 3);
  all.add(0, scores.narrow(0, 0, 6), labels.narrow(0, 0, 6));
  all.add(6, scores.narrow(0, 6, kSamples - 6), labels.narrow(0, 6, kSamples - 6));
  CHECK(all.mean_average_precision(alone) == doctest::Approx((0.5 + 2.0 / kSamples) / 3).epsilon(1e-12));
}

}  // namespace
}  // namespace cohort
