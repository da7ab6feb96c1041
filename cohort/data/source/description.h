#pragma once
// How raw inputs (a picture's file, the fields of a row, text, numbers) become inputs of the model, and what its outputs mean. Kept in the
// run folder as data.json (description_json.h), so that a trained model can be used without its data (encode_input.h). Torch-free.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/data/vocabulary/vocabulary.h"

namespace cohort {

/// One column of a table that the model reads.
struct DataColumn {
  std::string name;
  bool is_category = false;
  std::vector<std::string> values = {};  ///< Values of a category by index.
  bool one_hot = true;                   ///< Encode a category one-hot; else as its index.
  double mean = 0, deviation = 1;        ///< Of a number over the training part, for normalisation.

  /// Number of inputs that the column becomes.
  int64_t width() const { return is_category && one_hot ? static_cast<int64_t>(values.size()) : 1; }
};

/// A target of a regression; the model predicts (value - mean) / deviation.
struct DataTarget {
  std::string name;
  double mean = 0, deviation = 1;  ///< Over the training part.
};

struct DataDescription {
  enum class Input {
    kPicture,  ///< {channels, height, width} floats.
    kRow,      ///< {numbers} floats: the columns one after the other.
    kText,     ///< {context} bytes, or tokens of `vocabulary`.
    kTensor,   ///< Floats of any shape.
  };
  Input input = Input::kTensor;
  std::vector<int64_t> shape = {};            ///< Of one sample; see DataShape::input.
  bool regression = false;                    ///< Outputs are numbers (`targets`); else scores of classes or bytes.
  bool labels = false;                        ///< Multi-label; see DataShape::labels.
  int64_t num_outputs = 0;                    ///< Classes, labels, bytes (256), or numbers of a regression.
  std::vector<std::string> class_names = {};  ///< By index; may be empty.
  std::vector<DataTarget> targets = {};       ///< Of a regression: num_outputs.
  /// Value x of channel c (for pictures scaled to [0, 1]) becomes (x - mean[c]) / deviation[c]. One number: for all channels. Empty: not
  /// normalised. For rows see `columns`.
  std::vector<double> mean = {}, deviation = {};
  bool resized = false;  ///< Pictures are resized to `shape` (--image-size); else their size must match.
  std::vector<DataColumn> columns = {};
  std::shared_ptr<const Vocabulary> vocabulary = nullptr;  ///< Null: text is bytes.

  /// Mean and deviation of a channel; 0 and 1 where values are not normalised.
  double mean_at(int64_t channel) const { return mean.empty() ? 0 : mean[mean.size() == 1 ? 0 : static_cast<size_t>(channel)]; }
  double deviation_at(int64_t channel) const {
    return deviation.empty() ? 1 : deviation[deviation.size() == 1 ? 0 : static_cast<size_t>(channel)];
  }
};

/// "2 columns of numbers (area, rooms), 1 of categories (town: 3 values)" with the first names of each; "" without columns.
COHORT_API std::string columns_text(const DataDescription& description);

}  // namespace cohort
