// Order of samples. An epoch's order is a Fisher-Yates shuffle (Knuth, TAOCP 2, algorithm P) whose draws are hashes of (seed, epoch,
// position); a draw below n is the upper half of the product of 64 bits and n (Lemire 2019, without the rejection: for n < 2^31 no
// probability is off by more than 2^-33 of itself). Cost: num_samples hashes once an epoch, 4 bytes a sample.

#include "cohort/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/data/source/byte_buffer.h"

namespace cohort {
namespace {

/// Separates the random stream of the shuffle from others.
constexpr uint64_t kShuffleStream = 0x73687566666c65;

__extension__ typedef unsigned __int128 Wide;
__extension__ typedef __int128 SignedWide;

int64_t below(uint64_t bits, int64_t limit) { return static_cast<int64_t>(Wide{bits} * static_cast<uint64_t>(limit) >> 64); }

/// Weights as integers relative to the largest, so that shares are bitwise reproducible.
std::vector<uint64_t> integer_weights(const std::vector<double>& weights) {
  constexpr double kLargest = 0x1p32;
  double largest = 0;
  for (size_t rank = 0; rank < weights.size(); ++rank) {
    if (!(weights[rank] > 0) || !std::isfinite(weights[rank])) {
      fail(ErrorCode::kBadInput, "weight of rank ", rank, ": expected a positive number, found ", weights[rank]);
    }
    largest = std::max(largest, weights[rank]);
  }
  std::vector<uint64_t> out;
  for (const double weight : weights)
    out.push_back(std::max<uint64_t>(1, static_cast<uint64_t>(std::llround(weight / largest * kLargest))));
  return out;
}

/// `units` divided in proportion to `weights`: the whole parts of the quotas, then one more for each of the largest remainders
/// (A. Hamilton's method of apportionment).
std::vector<int64_t> units_by_weight(int64_t units, const std::vector<uint64_t>& weights) {
  const Wide total = std::accumulate(weights.begin(), weights.end(), Wide{0});
  std::vector<int64_t> out;
  std::vector<Wide> remainders;
  int64_t left = units;
  for (const uint64_t weight : weights) {
    const Wide quota = Wide{static_cast<uint64_t>(units)} * weight;  // In units of 1 / total.
    out.push_back(static_cast<int64_t>(quota / total));
    remainders.push_back(quota % total);
    left -= out.back();
  }
  std::vector<size_t> order(weights.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return remainders[a] > remainders[b]; });
  for (size_t i = 0; i < static_cast<size_t>(left); ++i) ++out[order[i]];
  return out;
}

}  // namespace

Share share_of_rank(int64_t batch, int rank, int num_ranks, int64_t granularity) {
  if (batch < 0 || num_ranks < 1 || rank < 0 || rank >= num_ranks || granularity < 1) {
    fail(ErrorCode::kBadInput, "no share of a batch of ", batch, " for rank ", rank, " of ", num_ranks, " in units of ", granularity);
  }
  const int64_t units = batch / granularity, base = units / num_ranks, extra = units % num_ranks;
  // The partial last unit goes to the last rank with samples, so that no share is off by more than one unit.
  const int64_t last_rank = base > 0 ? num_ranks - 1 : std::min<int64_t>(extra, num_ranks - 1);
  const auto begin_of = [&](int64_t at) { return at > last_rank ? batch : (at * base + std::min(at, extra)) * granularity; };
  return {begin_of(rank), begin_of(rank + int64_t{1})};
}

std::vector<Share> shares_of_batch(int64_t batch, const std::vector<double>& weights, int64_t granularity) {
  if (batch < 0 || weights.empty() || granularity < 1) {
    fail(ErrorCode::kBadInput, "no shares of a batch of ", batch, " for ", weights.size(), " ranks in units of ", granularity);
  }
  const std::vector<uint64_t> whole_weights = integer_weights(weights);
  const std::vector<int64_t> units = units_by_weight(batch / granularity, whole_weights);
  // The partial unit must come last: of the last rank with whole units and those after it, the one furthest below its quota gets it.
  const Wide total = std::accumulate(whole_weights.begin(), whole_weights.end(), Wide{0});
  const auto missing = [&](int64_t rank) {
    const size_t at = static_cast<size_t>(rank);
    return static_cast<SignedWide>(Wide{static_cast<uint64_t>(batch)} * whole_weights[at]) -
           static_cast<SignedWide>(static_cast<uint64_t>(units[at] * granularity) * total);
  };
  int64_t last_rank = std::ssize(units) - 1;
  while (last_rank > 0 && units[static_cast<size_t>(last_rank)] == 0) --last_rank;
  for (int64_t rank = last_rank + 1; rank < std::ssize(units); ++rank) {
    if (missing(rank) > missing(last_rank)) last_rank = rank;
  }
  std::vector<Share> out;
  int64_t at = 0;
  for (int64_t rank = 0; rank < std::ssize(units); ++rank) {
    const int64_t end = rank == last_rank ? batch : at + units[static_cast<size_t>(rank)] * granularity;
    out.push_back({at, end});
    at = end;
  }
  return out;
}

std::vector<Share> pieces_of_rank(int64_t batch, int rank, const std::vector<double>& weights, int num_pieces, int64_t granularity) {
  if (rank < 0 || rank >= std::ssize(weights)) fail(ErrorCode::kBadInput, "no pieces for rank ", rank, " of ", weights.size());
  std::vector<Share> out;
  for (int piece = 0; piece < num_pieces; ++piece) {
    const Share whole = share_of_rank(batch, piece, num_pieces, granularity);
    if (whole.size() == 0) break;  // Pieces without samples come last.
    const Share mine = shares_of_batch(whole.size(), weights, granularity)[static_cast<size_t>(rank)];
    out.push_back({whole.begin + mine.begin, whole.begin + mine.end});
  }
  return out;
}

Sampler::Sampler(int64_t num_samples, int64_t global_batch, uint64_t seed, bool shuffle, Batches batches,
                 const std::vector<BatchStage>& stages)
    : num_samples_(num_samples), global_batch_(global_batch), seed_(seed), shuffle_(shuffle), batches_(batches) {
  if (num_samples < 1 || num_samples > kMaxSamples) {
    fail(ErrorCode::kBadInput, "number of samples: expected 1 to ", kMaxSamples, ", found ", num_samples);
  }
  if (global_batch < 1) fail(ErrorCode::kBadInput, "global batch: expected at least 1, found ", global_batch);
  steps_per_epoch_ = (num_samples - 1) / global_batch + 1;
  stages_.push_back({0, global_batch, 0, 0});
  if (!stages.empty() && batches == Batches::kRunOn) fail(ErrorCode::kFailed, "batches that grow end with an epoch");
  for (const BatchStage& stage : stages) {
    if (stage.factor < 1 || stage.factor > num_samples / global_batch)
      fail(ErrorCode::kBadInput, stage.factor, " times a global batch of ", global_batch, " is more than the ", num_samples, " samples");
    const Place place = place_of(stage.first_step);
    stages_.push_back({stage.first_step, stage.factor * global_batch, place.epoch, place.offset});
  }
}

Sampler::Place Sampler::place_of(int64_t step) const {
  if (step < 0) fail(ErrorCode::kBadInput, "step: expected at least 0, found ", step);
  const auto after =
      std::upper_bound(stages_.begin(), stages_.end(), step, [](int64_t wanted, const Stage& stage) { return wanted < stage.first_step; });
  const Stage& stage = *std::prev(after);
  const auto steps_of = [&](int64_t samples) { return (samples - 1) / stage.batch + 1; };
  int64_t epoch = stage.epoch, offset = stage.offset, steps = step - stage.first_step;
  if (const int64_t of_begun_epoch = steps_of(num_samples_ - offset); steps >= of_begun_epoch) {
    steps -= of_begun_epoch;
    epoch += 1 + steps / steps_of(num_samples_);
    steps %= steps_of(num_samples_);
    offset = 0;
  }
  offset += steps * stage.batch;
  return {epoch, offset, std::min(stage.batch, num_samples_ - offset)};
}

int64_t Sampler::batch_at(int64_t step) const {
  if (batches_ == Batches::kWithinEpochs) return place_of(step).batch;
  if (step < 0) fail(ErrorCode::kBadInput, "step: expected at least 0, found ", step);
  return std::min(global_batch_, num_samples_);
}

int64_t Sampler::samples_before(int64_t step) const {
  if (batches_ == Batches::kRunOn) return step * batch_at(step);
  const Place place = place_of(step);
  return place.epoch * num_samples_ + place.offset;
}

int64_t Sampler::steps_until(int64_t samples) const {
  int64_t low = 0, high = 1;
  while (samples_before(high) < samples) low = high, high *= 2;
  while (low < high)
    if (const int64_t middle = low + (high - low) / 2; samples_before(middle) < samples) low = middle + 1;
    else high = middle;
  return high;
}

std::vector<int64_t> Sampler::samples(int64_t step, Share share) {
  const int64_t batch = batch_at(step);
  if (share.begin < 0 || share.begin > share.end || share.end > batch) {
    fail(ErrorCode::kBadInput, "share ", share.begin, " to ", share.end, " is not inside step ", step, ", which has ", batch, " samples");
  }
  std::vector<int64_t> out(static_cast<size_t>(share.size()));
  if (out.empty()) return out;
  if (batches_ == Batches::kWithinEpochs) {
    const Place place = place_of(step);
    copy(place.epoch, place.offset + share.begin, share.size(), out.data());
    return out;
  }
  const Wide begin = static_cast<Wide>(static_cast<uint64_t>(step)) * static_cast<uint64_t>(batch) + static_cast<uint64_t>(share.begin);
  auto epoch = static_cast<int64_t>(begin / static_cast<uint64_t>(num_samples_));
  auto first = static_cast<int64_t>(begin % static_cast<uint64_t>(num_samples_));
  for (int64_t done = 0; done < share.size(); ++epoch, first = 0) {
    const int64_t count = std::min(share.size() - done, num_samples_ - first);
    copy(epoch, first, count, out.data() + done);
    done += count;
  }
  return out;
}

void Sampler::copy(int64_t epoch, int64_t first, int64_t count, int64_t* out) {
  if (shuffle_) std::copy_n(order_of(epoch).begin() + first, count, out);
  else std::iota(out, out + count, first);
}

const std::vector<int32_t>& Sampler::order_of(int64_t epoch) {
  if (epoch == cached_epoch_) return order_;
  cached_epoch_ = -1;  // Until the order is complete: an allocation may fail.
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
