#pragma once
// Where a trained model is read from: a checkpoint of a run, of any layout, or a file that `checkpoint export` or `compress` wrote. All say
// what they hold: model with its options, step, what the data were like. Formats: docs/formats/checkpoint.md, safetensors.md,
// compressed.md.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/data/source/description.h"
#include "cohort/data/source/source.h"
#include "cohort/infer/compressed/compressed_form.h"
#include "cohort/job/config.h"

namespace cohort {

/// Immutable; any number of threads may read.
class TrainedFile {
 public:
  /// `path`: a run folder, its checkpoints, a step folder, or FILE.safetensors; `which` as open_chosen() has it, of a file "latest" alone.
  /// Error(kBadInput) in one line for what is missing, damaged or no trained model.
  static TrainedFile open(const std::string& path, const std::string& which = "latest");
  /// What a checkpoint that is open says of itself; it must outlive the object.
  static TrainedFile of(const Checkpoint& checkpoint);

  const std::string& path() const { return path_; }  ///< The step folder or the file.
  const std::string& given() const { return given_; }
  bool is_exported() const { return exported_ != nullptr; }
  /// Of a file that `cohort compress` wrote: how its model computes; else null.
  const CompressedForm* compressed() const { return compressed_.get(); }
  int64_t step() const { return step_; }
  const Config& config() const { return config_; }  ///< That trained it; `run` is empty.
  /// None where the run kept none: then its data tell.
  const std::optional<DataDescription>& description() const { return description_; }
  const std::string& fingerprint() const { return fingerprint_; }  ///< Of the training's data; "" where it is not known.
  /// How the training evaluated, an object; empty where that is not known. What it found for this step, if it did then.
  const Json& evaluation() const { return *evaluation_; }
  const std::optional<double>& val_loss() const { return val_loss_; }
  const std::optional<double>& val_error() const { return val_error_; }

  /// Of the model, under its own names.
  std::vector<std::string> tensor_names() const;
  /// Fills `destination`. Error(kBadInput) naming file and tensor where it is not there, or has another type or shape.
  void read(const std::string& name, DType dtype, const std::vector<int64_t>& shape, void* destination) const;

 private:
  TrainedFile() = default;
  void take(std::shared_ptr<const Checkpoint> checkpoint);
  void open_exported();
  void set_evaluation(const Json& evaluation);

  std::string given_, path_, fingerprint_;
  int64_t step_ = 0;
  Config config_;
  std::optional<DataDescription> description_;
  std::shared_ptr<const Json> evaluation_;
  std::optional<double> val_loss_, val_error_;
  std::shared_ptr<const Checkpoint> checkpoint_;     // One of the two
  std::shared_ptr<const SafetensorsFile> exported_;  // is there.
  std::shared_ptr<const CompressedForm> compressed_;
};

// What data a trained model was made for. Torch-free.

/// What a model is told of data that are described so.
DataShape shape_of(const DataDescription& description);

/// The description that the run kept; else that of its data, which are opened.
DataDescription description_of(const TrainedFile& file);

/// Error(kBadInput) where samples of `data` are not what the model was trained on: sizes, number or names of the classes, names or
/// categories of columns.
void check_same_kind(const DataDescription& trained, const DataSet& data);

/// A value was stored as (value - mean) / deviation.
struct ValueScale {
  double mean = 0, deviation = 1;
  bool operator==(const ValueScale&) const = default;
};
/// Of each number of a sample; empty for text.
std::vector<ValueScale> value_scales(const DataDescription& data);

/// The samples of `part` with the normalisation of the training in place of their own: of pictures, columns, tensors and the targets of a
/// regression. `part` itself where it has that already.
std::shared_ptr<const DataSource> as_trained(const DataDescription& trained, const std::shared_ptr<const DataSource>& part);

/// Of "train", "val", "test" and "all" (training and validation samples). Error(kBadInput) for another word, and for a part that the data
/// do not have.
std::shared_ptr<const DataSource> part_of(const DataSet& data, const std::string& split);

// What an exported file says of itself in its header, beside {"format": "pt", "step": "N"}: all that is needed to use it. Torch-free.
// Format: docs/formats/safetensors.md.

/// Keys of "__metadata__". Values are text; those of the second line are JSON.
namespace exported {
inline constexpr const char *kStep = "step", *kModel = "model", *kConfig = "config", *kPrecision = "precision", *kVersion = "cohort",
                            *kFingerprint = "data_fingerprint";
inline constexpr const char *kData = "data", *kValLoss = "val_loss", *kValError = "val_error", *kEvaluation = "evaluation",
                            *kCompressed = "compressed";
}  // namespace exported

/// Of a checkpoint that `cohort train` wrote; empty for one of a loop of one's own, which does not say what its model is. Where the run
/// kept no description of its data these are opened; where that fails a warning says what the file will lack.
std::map<std::string, std::string> exported_metadata(const Checkpoint& checkpoint);
/// The same of one that is open, or of an exported file.
std::map<std::string, std::string> exported_metadata(const TrainedFile& file);

}  // namespace cohort
