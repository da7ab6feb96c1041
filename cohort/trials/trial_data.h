#pragma once
// The data of a study's trials in memory (rows of floats that are gathered into batches, and labels), and their model.

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

/// The first samples of a source. Immutable, and shared by threads and by ranks forked later.
class TrialSamples {
 public:
  /// Images are read now into a flat array where they take at most `max_resident_bytes`; larger sets, those with labels, and text are read
  /// from the source batch by batch. `num_samples` 0: all.
  TrialSamples(std::shared_ptr<const DataSource> source, int64_t num_samples, int64_t max_resident_bytes);

  const DataShape& shape() const { return source_->shape(); }
  int64_t num_samples() const { return num_samples_; }
  bool is_resident() const { return values_.defined(); }
  /// Whether a ByteBatch can be made: images whose source has their bytes in memory, where integer products are faster.
  bool has_bytes() const { return source_bytes_ != nullptr; }
  /// Stores the bytes for products with all samples, where has_bytes().
  void keep_bytes();
  const ByteRows* bytes() const { return bytes_ ? &*bytes_ : nullptr; }  ///< Null without keep_bytes().

 private:
  friend class TrialBatch;
  friend class ByteBatch;
  std::shared_ptr<const DataSource> source_;
  int64_t num_samples_;
  at::Tensor values_;  ///< {samples, elements} floats; undefined where not resident.
  std::vector<int64_t> targets_;
  const uint8_t* source_bytes_ = nullptr;  ///< Memory of the source; null unless has_bytes().
  std::optional<ByteRows> bytes_;
};

/// Reusable memory for one batch. Used by one thread.
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

  Batch batch_;                 // Buffer for reads from the source.
  at::Tensor values_, labels_;  // Memory of gathered rows, which grows.
  at::Tensor input_, target_;   // The current batch, views of either.
};

/// A batch of image bytes. Used by one thread.
class ByteBatch {
 public:
  /// Requires samples.has_bytes(); refers to `samples`.
  explicit ByteBatch(const TrialSamples& samples);
  void gather(std::span<const int64_t> indices);
  const ByteRows& rows() const { return rows_; }
  const at::Tensor& target() const { return target_; }

 private:
  const TrialSamples& samples_;
  ByteRows rows_;
  at::Tensor values_, labels_, target_;  // Memory that grows; rows_ and target_ are views of it.
};

struct TrialDataOptions {
  int64_t train_samples = 0;  ///< > 0: only the first N samples train.
  bool with_test = false;
  int64_t max_resident_bytes = INT64_C(4) << 30;
};

/// The training, validation and (optional) test samples of a study's trials. Ranks that are forked later share its memory.
struct COHORT_PROGRAM_API TrialData {
  /// Error(kBadInput) where there are fewer samples than train_samples, or no test samples.
  explicit TrialData(const DataSet& data, const TrialDataOptions& options = {});
  TrialSamples train, validation;
  std::optional<TrialSamples> test;
};

TrialDataOptions trial_data_options(const study::StudySpec& spec);

/// The model of a study's trials. Error(kBadInput) as build_model(), for a model with a loss of its own (a study measures the
/// cross-entropy), and where the spec asks for a precision or label smoothing that the data do not support.
std::shared_ptr<LayerGraph> build_trial_model(const study::StudySpec& spec, const DataShape& shape, uint64_t seed);

}  // namespace cohort
