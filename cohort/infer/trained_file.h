#pragma once
// A trained model on disk: a checkpoint of a run, of any layout, or a file that `checkpoint export` or `compress` wrote. Each says what it
// holds: the model with its options, the step, the form of the data. Formats: docs/formats/checkpoint.md, safetensors.md, compressed.md.
// Torch-free.

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

/// Immutable and thread-safe.
class TrainedFile {
 public:
  /// `path`: a run folder, its checkpoints, a step folder, or FILE.safetensors. `which`: as in open_selected_checkpoint(); only "latest"
  /// for a file. Error(kBadInput) in one line for a path that is missing, damaged or not a trained model.
  static TrainedFile open(const std::string& path, const std::string& which = "latest");
  /// A view of an open checkpoint, which must outlive the object.
  static TrainedFile of(const Checkpoint& checkpoint);

  const std::string& path() const { return path_; }  ///< The step folder or the file.
  const std::string& given() const { return given_; }
  bool is_exported() const { return exported_ != nullptr; }
  /// How the model of a file that `cohort compress` wrote computes; null for other files.
  const CompressedForm* compressed() const { return compressed_.get(); }
  int64_t step() const { return step_; }
  const Config& config() const { return config_; }  ///< The training's; `run` is empty.
  /// None where the run kept no description; description_of() then opens its data.
  const std::optional<DataDescription>& description() const { return description_; }
  const std::string& fingerprint() const { return fingerprint_; }  ///< Of the training's data; "" where unknown.
  /// Parameters of the training's evaluations, an object, empty where unknown; and its results for this step, if it evaluated then.
  const Json& evaluation() const { return *evaluation_; }
  const std::optional<double>& val_loss() const { return val_loss_; }
  const std::optional<double>& val_error() const { return val_error_; }

  std::vector<std::string> tensor_names() const;
  /// Fills `destination`. Error(kBadInput) naming file and tensor where it is missing or has another type or shape.
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
  std::shared_ptr<const Checkpoint> checkpoint_;     // Either this
  std::shared_ptr<const SafetensorsFile> exported_;  // or this is set.
  std::shared_ptr<const CompressedForm> compressed_;
};

class LayerGraph;
// Defined in trained_model.cpp.
/// Error(kBadInput) where this program does not have the file's model.
void check_is_known(const TrainedFile& file);
/// The model in eval mode with the file's weights. Error(kBadInput) where this program does not have it, or tensors differ from the file's.
std::shared_ptr<LayerGraph> restore_model(const TrainedFile& file, const DataShape& shape);

/// The shape of data that are described so.
DataShape shape_of(const DataDescription& description);

/// The description that the run kept, else that of its data, which are opened.
DataDescription description_of(const TrainedFile& file);

/// Error(kBadInput) where samples of `data` differ in kind from those of the training: sizes, number or names of classes, names or
/// categories of columns.
void check_same_kind(const DataDescription& trained, const DataSet& data);

/// Normalisation: a value is stored as (value - mean) / deviation.
struct ValueScale {
  double mean = 0, deviation = 1;
  bool operator==(const ValueScale&) const = default;
};
/// Normalisation of each number of a sample; empty for text.
std::vector<ValueScale> value_scales(const DataDescription& data);

/// The samples of `part` with the normalisation of the training instead of their own (pictures, columns, tensors, regression targets);
/// `part` itself where they are the same.
std::shared_ptr<const DataSource> with_training_normalisation(const DataDescription& trained,
                                                              const std::shared_ptr<const DataSource>& part);

/// `split`: "train", "val", "test" or "all" (training and validation samples). Error(kBadInput) for another word, and for a part that the
/// data do not have.
std::shared_ptr<const DataSource> part_of(const DataSet& data, const std::string& split);

// The header of an exported file, beside {"format": "pt", "step": "N"}: all that is needed to use it. Format: docs/formats/safetensors.md.

/// Keys of "__metadata__". Values are text; those of the second line are JSON.
namespace exported {
inline constexpr const char *kStep = "step", *kModel = "model", *kConfig = "config", *kPrecision = "precision", *kVersion = "cohort",
                            *kFingerprint = "data_fingerprint";
inline constexpr const char *kData = "data", *kValLoss = "val_loss", *kValError = "val_error", *kEvaluation = "evaluation",
                            *kCompressed = "compressed";
}  // namespace exported

/// Header fields for a checkpoint of `cohort train`; empty for one of a user's own loop, which does not name its model. Where the run kept
/// no description of its data, they are opened; where that fails, a warning says what the file will lack.
std::map<std::string, std::string> exported_metadata(const Checkpoint& checkpoint);
std::map<std::string, std::string> exported_metadata(const TrainedFile& file);

}  // namespace cohort
