#include "cohort/session/loader_sampler.h"

#include <ATen/ops/tensor.h>
#include <torch/serialize/archive.h>

#include <algorithm>

#include "cohort/base/fail.h"

namespace cohort {

LoaderSampler::LoaderSampler(Session session, size_t num_samples, LoaderSamplerOptions options)
    : session_(std::move(session)), options_(options), num_samples_(static_cast<int64_t>(num_samples)), epoch_(options.first_epoch - 1) {
  if (num_samples == 0) fail(ErrorCode::kBadInput, "LoaderSampler: a data set of 0 samples");
  if (options.first_epoch < 0) fail(ErrorCode::kBadInput, "LoaderSampler: first_epoch ", options.first_epoch, " is below 0");
}

void LoaderSampler::reset(std::optional<size_t> new_size) {
  if (new_size) num_samples_ = static_cast<int64_t>(*new_size);
  ++epoch_;
  step_ = batch_size_ = 0;
}

/// Called with the first batch, when the loader's batch size is known.
void LoaderSampler::begin_epoch(size_t batch_size) {
  epoch_ = std::max<int64_t>(epoch_, options_.first_epoch);  // If reset() was not called.
  batch_size_ = static_cast<int64_t>(batch_size);
  const int64_t ranks = session_.num_shares(), last = num_samples_ % batch_size_;
  if (batch_size_ < ranks)
    fail(ErrorCode::kBadInput, "a global batch of ", batch_size_, " is less than one sample for each of ", ranks,
         " ranks; the batch size of the data loader is that of all ranks together");
  if (last > 0 && last < ranks && !options_.drop_last)
    fail(ErrorCode::kBadInput, "the last of the batches of ", batch_size_, " from ", num_samples_, " samples has ", last,
         ", less than one for each of ", ranks, " ranks; drop it with LoaderSampler's {.drop_last = true}, or take another batch size");
  if (options_.drop_last && num_samples_ < batch_size_)
    fail(ErrorCode::kBadInput, "drop_last leaves nothing of ", num_samples_, " samples in batches of ", batch_size_);
  sampler_.emplace(num_samples_, batch_size_, session_.seed(), options_.shuffle);
  steps_per_epoch_ = sampler_->steps_per_epoch() - (options_.drop_last && last > 0 ? 1 : 0);
}

std::optional<LoaderRows> LoaderSampler::next(size_t batch_size) {
  if (batch_size_ == 0) begin_epoch(batch_size);
  if (static_cast<int64_t>(batch_size) != batch_size_)
    fail(ErrorCode::kBadInput, "LoaderSampler: a batch of ", batch_size, " in an epoch of batches of ", batch_size_);
  // The loader hands out another batch at each call, for which set_samples() was not called yet.
  const int64_t ranks = session_.num_shares(), last = options_.drop_last ? 0 : num_samples_ % batch_size_;
  session_.batch_was_taken(batch_size_ % ranks == 0 && last % ranks == 0);
  if (step_ == steps_per_epoch_) return std::nullopt;
  const int64_t step = epoch_ * sampler_->steps_per_epoch() + step_++, whole = sampler_->batch_at(step);
  const std::vector<int64_t> rows = sampler_->samples(step, session_.share(whole));
  return LoaderRows({rows.begin(), rows.end()}, static_cast<size_t>(whole));
}

void LoaderSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("cohort_loader_sampler", at::tensor({epoch_, step_, batch_size_, num_samples_}, at::kLong));
}

void LoaderSampler::load(torch::serialize::InputArchive& archive) {
  at::Tensor saved;
  if (!archive.try_read("cohort_loader_sampler", saved) || saved.scalar_type() != at::kLong || saved.numel() != 4)
    fail(ErrorCode::kBadInput, "LoaderSampler: the archive holds no sampler of this kind");
  const auto at = [&](int64_t i) { return saved[i].item<int64_t>(); };
  if (at(3) != num_samples_)
    fail(ErrorCode::kBadInput, "LoaderSampler: the archive's sampler is one of ", at(3), " samples, and this one of ", num_samples_);
  if (at(0) < -1 || at(1) < 0 || at(2) < 0) fail(ErrorCode::kBadInput, "LoaderSampler: the archive's sampler is damaged");
  epoch_ = at(0), step_ = batch_size_ = 0;
  if (at(2) == 0) return;
  begin_epoch(static_cast<size_t>(at(2)));
  if (at(1) > steps_per_epoch_) fail(ErrorCode::kBadInput, "LoaderSampler: the archive's sampler is damaged");
  step_ = at(1);
}

}  // namespace cohort
