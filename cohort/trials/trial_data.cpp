// Samples of trials are decoded once and stay in memory (4 bytes per element; Fashion-MNIST: 172 MB), so that a batch is a gather of rows.
// The gather uses large pages, for fewer TLB misses, and prefetches the next row while one is copied. 512 rows of 784 floats, best of 60:
// 237 us plain, 178 with large pages, 92 with both.

#include "cohort/trials/trial_data.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "cohort/base/fail.h"
#include "cohort/models/registry.h"
#include "cohort/train/model/batch_tensors.h"

namespace cohort {
namespace {

int64_t checked_samples(const DataSource& source, int64_t num_samples) {
  if (num_samples == 0) return source.num_samples();
  if (num_samples < 0 || num_samples > source.num_samples())
    fail(ErrorCode::kBadInput, "train_samples: expected 1 to ", source.num_samples(), ", as many as the data has to train on, found ",
         num_samples);
  return num_samples;
}

std::vector<int64_t> shape_of(int64_t num_samples, const DataShape& shape) {
  std::vector<int64_t> sizes{num_samples};
  sizes.insert(sizes.end(), shape.input.begin(), shape.input.end());
  return sizes;
}

/// Advice only: a kernel without large pages ignores it.
void advise_large_pages(const at::Tensor& memory) {
  constexpr uintptr_t kPage = 4096;
  const auto begin = (reinterpret_cast<uintptr_t>(memory.const_data_ptr()) + kPage - 1) / kPage * kPage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(memory.const_data_ptr()) + memory.nbytes()) / kPage * kPage;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

void prefetch(const void* row, size_t bytes) {
  constexpr size_t kCacheLine = 64;
  const char* const first = static_cast<const char*>(row);
  for (size_t at = 0; at < bytes; at += kCacheLine) __builtin_prefetch(first + at, /*for write*/ 0, /*locality*/ 1);
}

}  // namespace

TrialSamples::TrialSamples(std::shared_ptr<const DataSource> source, int64_t num_samples, int64_t max_resident_bytes)
    : source_(std::move(source)), num_samples_(checked_samples(*source_, num_samples)) {
  constexpr int64_t kChunk = 1024, kFloatBytes = 4;
  const int64_t elements = shape().input_elements();
  if (shape().kind != DataShape::Kind::kImage || shape().targets_per_sample() != 1 || shape().has_numbers()) return;
  if (num_samples_ > max_resident_bytes / kFloatBytes / std::max<int64_t>(1, elements)) return;
  values_ = at::empty({num_samples_, elements}, at::kFloat);
  advise_large_pages(values_);
  targets_.resize(static_cast<size_t>(num_samples_));
  std::vector<int64_t> indices;
  Batch batch;
  for (int64_t first = 0; first < num_samples_; first += kChunk) {
    indices.resize(static_cast<size_t>(std::min(kChunk, num_samples_ - first)));
    std::iota(indices.begin(), indices.end(), first);
    source_->read(indices, batch);
    std::copy_n(batch.values.data(), std::ssize(indices) * elements, values_.mutable_data_ptr<float>() + first * elements);
    std::copy_n(batch.targets.data(), std::ssize(indices), targets_.data() + first);
  }
  if (ByteProduct::pays(elements)) source_bytes_ = bytes_in_memory(*source_);
}

void TrialSamples::keep_bytes() {
  if (has_bytes()) bytes_ = ByteRows::of(*source_, num_samples_);
}

void TrialBatch::read(const TrialSamples& samples, std::span<const int64_t> indices) {
  samples.source_->read(indices, batch_);
  BatchTensors tensors = as_tensors(batch_, samples.shape());
  input_ = std::move(tensors.input);
  target_ = std::move(tensors.target);
  values_.reset();
}

void TrialBatch::gather(const TrialSamples& samples, std::span<const int64_t> indices) {
  if (!samples.is_resident()) return read(samples, indices);
  const auto count = static_cast<int64_t>(indices.size());
  const int64_t elements = samples.values_.size(1);
  if (!values_.defined() || values_.size(0) < count || values_.size(1) != elements) {
    values_ = at::empty({count, elements}, at::kFloat);
    labels_ = at::empty({count}, at::kLong);
    input_.reset();
  }
  // A batch of the same size as the previous one reuses its tensors.
  if (!input_.defined() || input_.size(0) != count || input_.const_data_ptr() != values_.const_data_ptr()) {
    input_ = values_.narrow(0, 0, count).view(shape_of(count, samples.shape()));
    target_ = labels_.narrow(0, 0, count);
  }
  const float* const from = samples.values_.const_data_ptr<float>();
  float* to = values_.mutable_data_ptr<float>();
  int64_t* const labels = labels_.mutable_data_ptr<int64_t>();
  const size_t row_bytes = static_cast<size_t>(elements) * sizeof(float);
  for (size_t i = 0; i < indices.size(); ++i, to += elements) {
    if (i + 1 < indices.size()) prefetch(from + indices[i + 1] * elements, row_bytes);
    std::memcpy(to, from + indices[i] * elements, row_bytes);
    labels[i] = samples.targets_[static_cast<size_t>(indices[i])];
  }
}

void TrialBatch::view(const TrialSamples& samples, int64_t begin, int64_t end) {
  if (!samples.is_resident()) {
    std::vector<int64_t> indices(static_cast<size_t>(end - begin));
    std::iota(indices.begin(), indices.end(), begin);
    return read(samples, indices);
  }
  input_ = samples.values_.narrow(0, begin, end - begin).view(shape_of(end - begin, samples.shape()));
  // The tensor is only read.
  target_ = at::from_blob(const_cast<int64_t*>(samples.targets_.data()) + begin, {end - begin}, at::kLong);
}

ByteBatch::ByteBatch(const TrialSamples& samples) : samples_(samples), rows_(ByteRows::of(*samples.source_, 0).value()) {}

void ByteBatch::gather(std::span<const int64_t> indices) {
  const auto count = static_cast<int64_t>(indices.size());
  const int64_t elements = rows_.values.size(1);
  if (!values_.defined() || values_.size(0) < count) {
    values_ = at::empty({count, elements}, at::kChar);
    labels_ = at::empty({count}, at::kLong);
  }
  if (rows_.values.size(0) != count || rows_.values.const_data_ptr() != values_.const_data_ptr()) {
    rows_.values = values_.narrow(0, 0, count);
    target_ = labels_.narrow(0, 0, count);
  }
  int8_t* to = values_.mutable_data_ptr<int8_t>();
  int64_t* const labels = labels_.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < indices.size(); ++i, to += elements) {
    if (i + 1 < indices.size()) prefetch(samples_.source_bytes_ + indices[i + 1] * elements, static_cast<size_t>(elements));
    write_signed(samples_.source_bytes_ + indices[i] * elements, elements, to);
    labels[i] = samples_.targets_[static_cast<size_t>(indices[i])];
  }
}

TrialData::TrialData(const DataSet& data, const TrialDataOptions& options)
    : train(data.train, options.train_samples, options.max_resident_bytes), validation(data.validation, 0, options.max_resident_bytes) {
  validation.keep_bytes();
  if (!options.with_test) return;
  if (!data.test) fail(ErrorCode::kBadInput, "evaluate_test: ", data.name, " has no test samples; leave evaluate_test out");
  test.emplace(data.test, 0, options.max_resident_bytes);
  test->keep_bytes();
}

TrialDataOptions trial_data_options(const study::StudySpec& spec) {
  return {.train_samples = spec.train_samples, .with_test = spec.evaluate_test};
}

/// Precisions need data with labels, whose loss has no targets to smooth.
static void check_metrics(const study::StudySpec& spec, const DataShape& shape) {
  for (const study::GoalSpec& goal : spec.goals)
    if (study::higher_is_better(goal.metric) && !shape.labels)
      fail(ErrorCode::kBadInput, "goal ", goal.text(), ": a precision is of labels (task=labels), and data ", spec.data,
           " has one class for each target; use val_error");
  for (const study::BatchSpec& batch : spec.batches)
    for (const study::Hyperparameter& parameter : batch.space)
      if (parameter.name == "label_smoothing" && shape.labels)
        fail(ErrorCode::kBadInput, "label_smoothing is about the cross-entropy of classes, and data ", spec.data,
             " has labels; leave it out");
}

std::shared_ptr<LayerGraph> build_trial_model(const study::StudySpec& spec, const DataShape& shape, uint64_t seed) {
  std::shared_ptr<LayerGraph> model = build_model(spec.model, shape, seed);
  if (shape.regression)
    fail(ErrorCode::kBadInput, "data ", spec.data,
         " is a regression, and a study measures the cross-entropy and its error; use train, or task=classification");
  check_metrics(spec, shape);
  if (model->loss() && !(shape.labels && model->loss_name() == "binary"))
    fail(ErrorCode::kBadInput, "model ", spec.model,
         " has a loss of its own, and a study measures the cross-entropy and its error; use train, or a model without a loss of its own");
  return model;
}

}  // namespace cohort
