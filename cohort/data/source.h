#pragma once
// Where samples come from: files of pictures, folders of text, or numbers made up from a seed. Torch-free: a Batch is plain memory that the
// trainer wraps without a copy.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cohort/base/export.h"

namespace cohort {

/// What one sample looks like, known before a model is built.
struct COHORT_API DataShape {
  enum class Kind { kImage, kText };
  Kind kind = Kind::kImage;
  std::vector<int64_t> input;            ///< Of one sample: {channels, height, width}, or {context} for text.
  int64_t num_classes = 0;               ///< Labels of a picture; size of the vocabulary (256) for bytes of text.
  std::vector<std::string> class_names;  ///< Empty where the data has no names.

  int64_t input_elements() const;                     ///< Product of `input`.
  int64_t vocabulary() const { return num_classes; }  ///< The same number under the name that it has for text.
  int64_t targets_per_sample() const;                 ///< 1 for a picture, context for text (each position predicts the next byte).
};

/// Samples of one optimizer step that belong to one rank, or of one evaluation chunk. Kind kImage fills `values` (normalised floats), kText
/// fills `tokens` (bytes as 0..255).
struct Batch {
  int64_t num_samples = 0;
  std::vector<float> values;     ///< num_samples x input_elements
  std::vector<int64_t> tokens;   ///< num_samples x context
  std::vector<int64_t> targets;  ///< num_samples x targets_per_sample
};

/// A fixed, ordered set of samples. Immutable after construction, so any number of threads may read.
class COHORT_API DataSource {
 public:
  virtual ~DataSource() = default;
  virtual const DataShape& shape() const = 0;
  virtual int64_t num_samples() const = 0;
  /// Replaces `batch` by the samples `indices`, in that order. Indices lie in [0, num_samples()).
  virtual void read(std::span<const int64_t> indices, Batch& batch) const = 0;
};

struct DataSet {
  std::string name;  ///< The specification it was opened from.
  std::shared_ptr<const DataSource> train;
  std::shared_ptr<const DataSource> validation;
};

struct Config;

struct DataOptions {
  int64_t context = 64;    ///< Text: input bytes of one sample.
  int64_t image_size = 0;  ///< Pictures of files: resized to so many pixels a side when they are read; 0: as they are.
  int64_t validation_samples =
      0;              ///< 0: 5,000 where there are at least 55,000 (as the batch-size study has it), else a tenth, at least one.
  uint64_t seed = 0;  ///< Of synthetic data.
};

/// Opens `fashion-mnist[:DIR]`, `mnist:DIR`, `cifar10:DIR`, `text:FILE-OR-DIR`, `synthetic:SHAPE[,key=value...]`. A file that is missing,
/// malformed, truncated, mislabelled or empty: Error(kBadInput) with one line that names file, offset and what was expected.
COHORT_API DataSet open_data(const std::string& specification, const DataOptions& options = {});
/// config.data, with all that the configuration says of it.
COHORT_PROGRAM_API DataSet open_data(const Config& config);

}  // namespace cohort
