#pragma once
// What data a trained model was made for. Torch-free.

#include <vector>

#include "cohort/data/source/source.h"
#include "cohort/infer/trained_file.h"

namespace cohort {

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

}  // namespace cohort
