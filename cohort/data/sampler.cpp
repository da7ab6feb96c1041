// Order of samples. An epoch's order is a Fisher-Yates shuffle (Knuth, TAOCP 2, algorithm P) whose draws are hashes of (seed, epoch,
// position); a draw below n is the upper half of the product of 64 bits and n (Lemire 2019, without the rejection: for n < 2^31 no
// probability is off by more than 2^-33 of itself). Cost: num_samples hashes once an epoch, 4 bytes a sample.

#include "cohort/data/sampler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "cohort/base/error.h"
#include "cohort/base/random.h"
#include "cohort/data/byte_buffer.h"

namespace cohort {
namespace {

/// Keeps the keys of this use of the seed apart from others.
constexpr uint64_t kShuffleStream = 0x73687566666c65;

__extension__ typedef unsigned __int128 Wide;

int64_t below(uint64_t bits, int64_t limit) { return static_cast<int64_t>(Wide{bits} * static_cast<uint64_t>(limit) >> 64); }

}  // namespace

Share share_of_rank(int64_t batch, int rank, int num_ranks, int64_t granularity) {
  if (batch < 0 || num_ranks < 1 || rank < 0 || rank >= num_ranks || granularity < 1) {
    fail(ErrorCode::kBadInput, "no share of a batch of ", batch, " for rank ", rank, " of ", num_ranks, " in units of ", granularity);
  }
  const int64_t units = batch / granularity, base = units / num_ranks, extra = units % num_ranks;
  // What is left of the last unit goes to the last rank that has samples, so that no share is off by more than one unit.
  const int64_t last_rank = base > 0 ? num_ranks - 1 : std::min<int64_t>(extra, num_ranks - 1);
  const auto begin_of = [&](int64_t at) { return at > last_rank ? batch : (at * base + std::min(at, extra)) * granularity; };
  return {begin_of(rank), begin_of(rank + int64_t{1})};
}

Sampler::Sampler(int64_t num_samples, int64_t global_batch, uint64_t seed, bool shuffle)
    : num_samples_(num_samples), global_batch_(global_batch), seed_(seed), shuffle_(shuffle) {
  if (num_samples < 1 || num_samples > kMaxSamples) {
    fail(ErrorCode::kBadInput, "number of samples: expected 1 to ", kMaxSamples, ", found ", num_samples);
  }
  if (global_batch < 1) fail(ErrorCode::kBadInput, "global batch: expected at least 1, found ", global_batch);
  steps_per_epoch_ = (num_samples - 1) / global_batch + 1;
}

int64_t Sampler::batch_at(int64_t step) const {
  if (step < 0) fail(ErrorCode::kBadInput, "step: expected at least 0, found ", step);
  const int64_t step_of_epoch = step % steps_per_epoch_;
  return step_of_epoch + 1 < steps_per_epoch_ ? global_batch_ : num_samples_ - step_of_epoch * global_batch_;
}

std::vector<int64_t> Sampler::samples(int64_t step, Share share) {
  const int64_t batch = batch_at(step);
  if (share.begin < 0 || share.begin > share.end || share.end > batch) {
    fail(ErrorCode::kBadInput, "share ", share.begin, " to ", share.end, " is not inside step ", step, ", which has ", batch, " samples");
  }
  std::vector<int64_t> out(static_cast<size_t>(share.size()));
  if (out.empty()) return out;
  const int64_t first = step % steps_per_epoch_ * global_batch_ + share.begin;
  if (!shuffle_) {
    std::iota(out.begin(), out.end(), first);
  } else {
    std::copy_n(order_of(step / steps_per_epoch_).begin() + first, share.size(), out.begin());
  }
  return out;
}

const std::vector<int32_t>& Sampler::order_of(int64_t epoch) {
  if (epoch == cached_epoch_) return order_;
  cached_epoch_ = -1;  // Until the order is whole: an allocation may fail.
  order_.resize(static_cast<size_t>(num_samples_));
  std::iota(order_.begin(), order_.end(), 0);
  const uint64_t key = random_bits(seed_, kShuffleStream, epoch);
  for (int64_t i = num_samples_ - 1; i > 0; --i) {
    std::swap(order_[static_cast<size_t>(i)], order_[static_cast<size_t>(below(random_bits(key, i), i + 1))]);
  }
  cached_epoch_ = epoch;
  return order_;
}

}  // namespace cohort
