#pragma once
// MNIST and Fashion-MNIST: ten classes of grey pictures in four IDX files, as they are or in gzip.

#include <cstdint>
#include <string>

#include "cohort/data/source/byte_buffer.h"
#include "cohort/data/source/source.h"

namespace cohort {

/// Grey pictures, one byte a pixel, rows from the top: count x rows x columns bytes.
struct IdxImages {
  int64_t count = 0, rows = 0, columns = 0;
  ByteBuffer pixels;
};

/// One byte a label.
struct IdxLabels {
  ByteBuffer labels;
  int64_t count() const { return labels.size(); }
};

/// Error(kBadInput) with file, offset, what was expected and found for an invalid file. Offsets in a gzip file are those of the inflated
/// content unless stated otherwise.
IdxImages read_idx_images(const std::string& path);
/// Likewise; labels must be below `num_classes`.
IdxLabels read_idx_labels(const std::string& path, int64_t num_classes);
/// Reads both; their counts must be equal.
void read_idx_pair(const std::string& images_path, const std::string& labels_path, int64_t num_classes, IdxImages& images,
                   IdxLabels& labels);

/// Opens the train files of `folder` with the t10k files, if any, as test set, or the t10k files alone; plain or .gz. Errors: see
/// open_data.
DataSet open_mnist(const std::string& folder, const DataOptions& options);
/// Likewise; an empty `folder` is that of Debian's package dataset-fashion-mnist.
DataSet open_fashion_mnist(const std::string& folder, const DataOptions& options);

}  // namespace cohort
