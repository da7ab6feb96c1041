#pragma once
// Sources of samples: files of pictures, tables, tensors or text, or synthetic data. Torch-free: a Batch is plain memory that the trainer
// wraps without a copy.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/data/source/description.h"

namespace cohort {

/// The shape of a sample, known before a model is built.
struct COHORT_API DataShape {
  enum class Kind { kImage, kText };  ///< kImage: floats, of pictures, rows of a table or tensors.
  Kind kind = Kind::kImage;
  std::vector<int64_t> input;            ///< {channels, height, width}, {numbers of a row}, or {context} for text.
  int64_t num_classes = 0;               ///< Outputs of a model: classes, labels, vocabulary, or numbers of a regression.
  std::vector<std::string> class_names;  ///< Names of classes or labels; may be empty.
  bool regression = false;               ///< Targets are numbers; mean squared error.
  /// Multi-label: targets are 0 or 1 for each label; binary cross-entropy.
  bool labels = false;

  int64_t input_elements() const;                     ///< Product of `input`.
  int64_t vocabulary() const { return num_classes; }  ///< num_classes of text.
  /// Targets are num_classes floats per sample (Batch::numbers), not class indices.
  bool has_numbers() const { return regression || labels; }
  /// 1 for a class, context for text (each position predicts the next byte), num_classes for numbers.
  int64_t targets_per_sample() const;
};

/// Samples of one step on one rank, or of one evaluation chunk. kImage fills `values` (normalised floats), kText fills `tokens`.
struct Batch {
  int64_t num_samples = 0;
  std::vector<float> values;     ///< num_samples x input_elements
  std::vector<int64_t> tokens;   ///< num_samples x context
  std::vector<int64_t> targets;  ///< num_samples x targets_per_sample, or, with DataShape::has_numbers(),
  std::vector<float> numbers;    ///< the same as floats.
};

/// A fixed, ordered set of samples. Immutable after construction, so any number of threads may read.
class COHORT_API DataSource {
 public:
  virtual ~DataSource() = default;
  virtual const DataShape& shape() const = 0;
  virtual int64_t num_samples() const = 0;
  /// Replaces `batch` by the samples `indices` in [0, num_samples()), in that order.
  virtual void read(std::span<const int64_t> indices, Batch& batch) const = 0;
  /// How raw inputs became samples. Default: text as bytes, everything else as unnormalised floats.
  virtual DataDescription describe() const;
};

/// Samples skipped by --skip-bad.
struct SkippedData {
  int64_t count = 0;
  std::vector<std::string> first = {};  ///< Reasons of the first ones.

  void add(const std::string& sentence);
  /// add(), or Error(kBadInput) with the sentence and a hint at --skip-bad where nothing is to be skipped. `what`: "rows".
  void add_or_fail(const std::string& sentence, bool skip_bad, const char* what);
};

struct DataSet {
  std::string name;  ///< The specification it was opened from.
  std::shared_ptr<const DataSource> train;
  std::shared_ptr<const DataSource> validation;
  std::shared_ptr<const DataSource> test = nullptr;  ///< May be null.
  SkippedData skipped = {};
};

struct Config;

struct DataOptions {
  int64_t context = 64;            ///< Text: input bytes of one sample.
  int64_t image_size = 0;          ///< Side in pixels that picture files are resized to; 0: unchanged.
  int64_t validation_samples = 0;  ///< 0: 5,000 of at least 55,000, else a tenth, at least one.
  uint64_t seed = 0;               ///< Of synthetic data, and of the split of folder, csv, npy and safetensors.
  bool skip_bad = false;           ///< Skip unreadable pictures and rows (DataSet::skipped).
  int threads = 0;                 ///< Threads per rank that decode pictures; 0: one per core, at most 8.
  /// Description of a resumed run, whose mean and deviation are reused.
  std::shared_ptr<const DataDescription> kept = nullptr;
};

/// Opens `fashion-mnist[:DIR]`, `mnist:DIR`, `cifar10:DIR`, `text:FILE-OR-DIR`, `folder:DIR`, `csv:FILE`, `npy:DIR`, `safetensors:FILE`,
/// `synthetic:SHAPE`, most with [,key=value...], or registered data. Error(kBadInput) for an invalid file with its name, offset or row, and
/// what was expected.
COHORT_API DataSet open_data(const std::string& specification, const DataOptions& options = {});
/// Opens config.data with its settings.
COHORT_PROGRAM_API DataSet open_data(const Config& config);

}  // namespace cohort
