#pragma once
// What trials of a study train: its samples in memory, as a step wants them (rows of floats that are copied into a batch, labels beside
// them), and its model.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/data/source/source.h"
#include "cohort/study/spec/spec.h"
#include "cohort/trials/dense_chain.h"

namespace cohort {

class LayerGraph;

/// The first samples of a source. Immutable: any number of threads, and ranks forked later, read one copy.
class TrialSamples {
 public:
  /// Pictures are read now into a flat array when they take at most `max_resident_bytes`; larger sets, those with labels, and text (whose
  /// source gathers from bytes), are read from the source batch by batch. `num_samples` 0: all.
  TrialSamples(std::shared_ptr<const DataSource> source, int64_t num_samples, int64_t max_resident_bytes);

  const DataShape& shape() const { return source_->shape(); }
  int64_t num_samples() const { return num_samples_; }
  bool is_resident() const { return values_.defined(); }
  /// Whether a ByteBatch may be made of them: pictures whose source has their bytes in memory, and products in whole numbers pay.
  bool has_bytes() const { return source_bytes_ != nullptr; }
  /// Keeps the bytes for products of all samples, where there are any.
  void keep_bytes();
  const ByteRows* bytes() const { return bytes_ ? &*bytes_ : nullptr; }  ///< Null unless kept.

 private:
  friend class TrialBatch;
  friend class ByteBatch;
  std::shared_ptr<const DataSource> source_;
  int64_t num_samples_;
  at::Tensor values_;  ///< {samples, elements} floats; undefined where not resident.
  std::vector<int64_t> targets_;
  const uint8_t* source_bytes_ = nullptr;  ///< The source's; null unless has_bytes().
  std::optional<ByteRows> bytes_;
};

/// Memory for one batch, used again and again. One thread.
class TrialBatch {
 public:
  /// Replaces the batch by these samples, in this order. Indices lie in [0, num_samples()).
  void gather(const TrialSamples& samples, std::span<const int64_t> indices);
  /// The same for [begin, end), without a copy where the samples are resident.
  void view(const TrialSamples& samples, int64_t begin, int64_t end);

  const at::Tensor& input() const { return input_; }    ///< {samples, ...shape.input}: floats, or int64 bytes.
  const at::Tensor& target() const { return target_; }  ///< {samples} or {samples, context}, int64; {samples, labels}, float.
  int64_t num_samples() const { return input_.defined() ? input_.size(0) : 0; }

 private:
  void read(const TrialSamples& samples, std::span<const int64_t> indices);

  Batch batch_;                 // Where the source is read.
  at::Tensor values_, labels_;  // Grown memory of gathered rows.
  at::Tensor input_, target_;   // What is shown of either.
};

/// The same for bytes. One thread.
class ByteBatch {
 public:
  /// Refers to `samples`, where has_bytes() holds.
  explicit ByteBatch(const TrialSamples& samples);
  void gather(std::span<const int64_t> indices);
  const ByteRows& rows() const { return rows_; }
  const at::Tensor& target() const { return target_; }

 private:
  const TrialSamples& samples_;
  ByteRows rows_;
  at::Tensor values_, labels_, target_;  // Grown memory, and what is shown of it beside rows_.
};

struct TrialDataOptions {
  int64_t train_samples = 0;  ///< > 0: only the first N train.
  bool with_test = false;
  int64_t max_resident_bytes = INT64_C(4) << 30;
};

/// What the trials of a study train, validate and, where it is asked for, test on. Make it before ranks are forked: they share its pages.
struct COHORT_PROGRAM_API TrialData {
  /// Error(kBadInput) where there are fewer samples, or none to test on.
  explicit TrialData(const DataSet& data, const TrialDataOptions& options = {});
  TrialSamples train, validation;
  std::optional<TrialSamples> test;
};

TrialDataOptions trial_data_options(const study::StudySpec& spec);

/// The model of a study's trials. Error(kBadInput) as build_model() has it, for one with a loss of its own (a study measures the
/// cross-entropy), and where the spec asks for what such data have not: a precision, targets to smooth.
std::shared_ptr<LayerGraph> build_trial_model(const study::StudySpec& spec, const DataShape& shape, uint64_t seed);

}  // namespace cohort
