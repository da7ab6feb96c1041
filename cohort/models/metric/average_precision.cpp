#include "cohort/models/metric/average_precision.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace cohort {
namespace {

constexpr int64_t kBlockNumbers = 1 << 23;  // Floats of an exchange.

}  // namespace

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
  // Copies: a batch's memory is filled anew.
  chunks_.push_back({first, scores.reshape({count, num_labels_}).to(at::kFloat, false, /*copy=*/true).contiguous(),
                     labels.reshape({count, num_labels_}).to(at::kByte, false, /*copy=*/true).contiguous()});
}

/// {labels, 2, samples}: scores and targets of this rank's samples, 0 for the others.
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
  // Of each label its average precision and whether it has one.
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
