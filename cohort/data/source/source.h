#pragma once
// Where samples come from: files of pictures, tables, tensors, text, or numbers made up from a seed. Torch-free: a Batch is plain memory
// that the trainer wraps without a copy.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/data/source/description.h"

namespace cohort {

/// What one sample looks like, known before a model is built.
struct COHORT_API DataShape {
  enum class Kind { kImage, kText };  ///< kImage: floats, of pictures, rows of a table or tensors.
  Kind kind = Kind::kImage;
  std::vector<int64_t> input;            ///< Of one sample: {channels, height, width}, {numbers of a row}, or {context} for text.
  int64_t num_classes = 0;               ///< Scores that a model gives: classes, labels, 256 for bytes of text; how many numbers.
  std::vector<std::string> class_names;  ///< Of classes or labels; empty where the data has no names.
  bool regression = false;               ///< Targets are numbers, and the loss is the mean squared error.
  /// Any number of labels is right for a sample: targets are a 0 or 1 for each, and the loss is the binary cross-entropy.
  bool labels = false;

  int64_t input_elements() const;                     ///< Product of `input`.
  int64_t vocabulary() const { return num_classes; }  ///< The same number under the name that it has for text.
  /// Targets are floats (Batch::numbers), num_classes a sample, not indices of classes.
  bool has_numbers() const { return regression || labels; }
  /// 1 for a class, context for text (each position predicts the next byte), num_classes for numbers.
  int64_t targets_per_sample() const;
};

/// Samples of one optimizer step that belong to one rank, or of one evaluation chunk. Kind kImage fills `values` (normalised floats), kText
/// fills `tokens` (bytes as 0..255).
struct Batch {
  int64_t num_samples = 0;
  std::vector<float> values;     ///< num_samples x input_elements
  std::vector<int64_t> tokens;   ///< num_samples x context
  std::vector<int64_t> targets;  ///< num_samples x targets_per_sample; where DataShape::has_numbers() empty,
  std::vector<float> numbers;    ///< for they are here: of labels 0 and 1.
};

/// A fixed, ordered set of samples. Immutable after construction, so any number of threads may read.
class COHORT_API DataSource {
 public:
  virtual ~DataSource() = default;
  virtual const DataShape& shape() const = 0;
  virtual int64_t num_samples() const = 0;
  /// Replaces `batch` by the samples `indices`, in that order. Indices lie in [0, num_samples()).
  virtual void read(std::span<const int64_t> indices, Batch& batch) const = 0;
  /// How raw inputs became samples. By default what the shape says: text as bytes, all else as floats that were taken as they are.
  virtual DataDescription describe() const;
};

/// What --skip-bad left out.
struct SkippedData {
  int64_t count = 0;
  std::vector<std::string> first = {};  ///< Why, a sentence each, of the first of them.

  void add(const std::string& sentence);
  /// add(), or Error(kBadInput) with the sentence and a hint at --skip-bad where nothing is to be skipped. `what`: "rows".
  void add_or_fail(const std::string& sentence, bool skip_bad, const char* what);
};

struct DataSet {
  std::string name;  ///< The specification it was opened from.
  std::shared_ptr<const DataSource> train;
  std::shared_ptr<const DataSource> validation;
  std::shared_ptr<const DataSource> test = nullptr;  ///< Null where the data have none.
  SkippedData skipped = {};
};

struct Config;

struct DataOptions {
  int64_t context = 64;    ///< Text: input bytes of one sample.
  int64_t image_size = 0;  ///< Pictures of files: resized to so many pixels a side when they are read; 0: as they are.
  int64_t validation_samples =
      0;                  ///< 0: 5,000 where there are at least 55,000 (as the batch-size study has it), else a tenth, at least one.
  uint64_t seed = 0;      ///< Of synthetic data, and of what is kept for validation of folder, csv, npy and safetensors.
  bool skip_bad = false;  ///< Pictures and rows that cannot be read are left out and counted (DataSet::skipped).
  int threads = 0;        ///< Of each rank, that decode pictures when they are read; 0: one a core, at most 8.
  /// Of a run that goes on: mean and deviation are taken from it, not computed anew.
  std::shared_ptr<const DataDescription> kept = nullptr;
};

/// Opens `fashion-mnist[:DIR]`, `mnist:DIR`, `cifar10:DIR`, `text:FILE-OR-DIR`, `folder:DIR`, `csv:FILE`, `npy:DIR`, `safetensors:FILE`,
/// `synthetic:SHAPE`, most with [,key=value...], or what register_data knows. A file that is missing, malformed, truncated, mislabelled or
/// empty: Error(kBadInput) with one line that names file, offset or row, and what was expected.
COHORT_API DataSet open_data(const std::string& specification, const DataOptions& options = {});
/// config.data, with all that the configuration says of it.
COHORT_PROGRAM_API DataSet open_data(const Config& config);

}  // namespace cohort
