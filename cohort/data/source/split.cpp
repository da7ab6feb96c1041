#include "cohort/data/source/split.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"

namespace cohort {
namespace {

constexpr uint64_t kSplitStream = 0x53504c49;  // Separates its random stream from others.

}  // namespace

int64_t num_validation_samples(const std::string& what, int64_t num_samples, const DataOptions& options) {
  const int64_t wanted = options.validation_samples;
  if (wanted < 0) fail(ErrorCode::kBadInput, "validation samples: expected at least 0, found ", wanted);
  if (num_samples < 2)
    fail(ErrorCode::kBadInput, what, ": expected at least 2 samples (one to train on, one for validation), found ", num_samples);
  if (wanted >= num_samples) {
    fail(ErrorCode::kBadInput, what, " has ", num_samples, " samples: expected at most ", num_samples - 1, " for validation, found ",
         wanted);
  }
  if (wanted > 0) return wanted;
  return num_samples >= 55000 ? 5000 : std::max<int64_t>(1, num_samples / 10);
}

/// The head of a Fisher-Yates shuffle: each set of so many samples is equally likely.
SplitSamples split_by_seed(const std::string& what, int64_t num_samples, const DataOptions& options, uint64_t seed) {
  const int64_t num_validation = num_validation_samples(what, num_samples, options);
  std::vector<int64_t> order(static_cast<size_t>(num_samples));
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = 0; i < num_validation; ++i) {
    const auto left = static_cast<uint64_t>(num_samples - i);
    const auto chosen = static_cast<int64_t>(random_bits(seed, kSplitStream, i) % left);
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(i + chosen)]);
  }
  const auto middle = order.begin() + num_validation;
  SplitSamples split{{middle, order.end()}, {order.begin(), middle}};
  std::sort(split.train.begin(), split.train.end());
  std::sort(split.validation.begin(), split.validation.end());
  return split;
}

void resize_batch(Batch& batch, const DataShape& shape, int64_t num_samples) {
  const bool text = shape.kind == DataShape::Kind::kText;
  const size_t elements = static_cast<size_t>(num_samples * shape.input_elements());
  batch.num_samples = num_samples;
  batch.values.resize(text ? 0 : elements);
  batch.tokens.resize(text ? elements : 0);
  const size_t targets = static_cast<size_t>(num_samples * shape.targets_per_sample());
  batch.targets.resize(shape.has_numbers() ? 0 : targets);
  batch.numbers.resize(shape.has_numbers() ? targets : 0);
}

void check_index(int64_t index, int64_t num_samples) {
  if (index < 0 || index >= num_samples) fail(ErrorCode::kFailed, "sample ", index, " was asked for, but there are ", num_samples);
}

namespace {

class FirstSamples : public DataSource {
 public:
  FirstSamples(std::shared_ptr<const DataSource> whole, int64_t count) : whole_(std::move(whole)), count_(count) {}

  const DataShape& shape() const override { return whole_->shape(); }
  int64_t num_samples() const override { return count_; }
  void read(std::span<const int64_t> indices, Batch& batch) const override {
    for (const int64_t index : indices) check_index(index, count_);
    whole_->read(indices, batch);
  }
  DataDescription describe() const override { return whole_->describe(); }

 private:
  std::shared_ptr<const DataSource> whole_;
  int64_t count_;
};

}  // namespace

std::shared_ptr<const DataSource> first_samples(const std::shared_ptr<const DataSource>& source, int64_t count) {
  if (count < 0 || count >= source->num_samples()) return source;
  return std::make_shared<FirstSamples>(source, count);
}

void parallel_for_samples(int num_threads, int64_t count, const std::function<void(int64_t i)>& work) {
  std::atomic<int64_t> next = 0;
  std::mutex mutex;
  std::atomic<int64_t> failed_at = count;
  std::exception_ptr failure;
  const auto run = [&] {
    for (int64_t i = next++; i < failed_at; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i > failed_at) continue;
        failed_at = i;
        failure = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> others;
    for (int64_t thread = 1; thread < std::min<int64_t>(num_threads, count); ++thread) others.emplace_back(run);
    run();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace cohort
