#pragma once
// What data look like to a training: how a raw input (the bytes of a picture's file, the fields of a row, text, numbers) becomes what the
// model gets, and what the model's answer means. A plain value, torch-free; kept in the run folder as data.json (description_json.h), so
// that a trained model can be asked where its data are not. Raw inputs are encoded by encode_input.h.

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
  std::vector<std::string> values = {};  ///< Of a category, by index.
  bool one_hot = true;                   ///< A category as one 0 or 1 for each of its values; else as its index.
  double mean = 0, deviation = 1;        ///< Of a number over the training part: it becomes (number - mean) / deviation.

  /// How many of the input's numbers it makes.
  int64_t width() const { return is_category && one_hot ? static_cast<int64_t>(values.size()) : 1; }
};

/// Of a regression: what is predicted. The model gives (value - mean) / deviation.
struct DataTarget {
  std::string name;
  double mean = 0, deviation = 1;  ///< Over the training part.
};

struct DataDescription {
  enum class Input {
    kPicture,  ///< {channels, height, width} floats.
    kRow,      ///< {numbers} floats: the columns one after the other.
    kText,     ///< {context} bytes, or pieces of `vocabulary`.
    kTensor,   ///< Floats of any shape.
  };
  Input input = Input::kTensor;
  std::vector<int64_t> shape = {};            ///< Of one sample, as the model gets it; see DataShape::input.
  bool regression = false;                    ///< The model gives numbers (`targets`); else a score for each class or byte.
  bool labels = false;                        ///< The scores are of labels, of which any number is right; see DataShape::labels.
  int64_t num_outputs = 0;                    ///< Classes, labels, values of a byte (256), or numbers of a regression.
  std::vector<std::string> class_names = {};  ///< By index; empty where the data have none.
  std::vector<DataTarget> targets = {};       ///< Of a regression: num_outputs of them.
  /// Value x of channel c (of a picture, in units of the interval [0, 1] that its darkest and lightest value span) becomes
  /// (x - mean[c]) / deviation[c]. One number: of all values. Empty: values are taken as they are. Of rows: see columns.
  std::vector<double> mean = {}, deviation = {};
  bool resized = false;  ///< A picture of any size is resized to `shape`, as --image-size had it; else its size must be that.
  std::vector<DataColumn> columns = {};
  std::shared_ptr<const Vocabulary> vocabulary = nullptr;  ///< Of text in pieces; null: text is bytes.

  /// Mean and deviation of a channel; 0 and 1 where values are not normalised.
  double mean_at(int64_t channel) const { return mean.empty() ? 0 : mean[mean.size() == 1 ? 0 : static_cast<size_t>(channel)]; }
  double deviation_at(int64_t channel) const {
    return deviation.empty() ? 1 : deviation[deviation.size() == 1 ? 0 : static_cast<size_t>(channel)];
  }
};

/// "2 columns of numbers (area, rooms), 1 of categories (town: 3 values)" with the first names of each; "" where there are no columns.
COHORT_API std::string columns_text(const DataDescription& description);

}  // namespace cohort
