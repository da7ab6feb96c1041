#pragma once
// MNIST and Fashion-MNIST: ten classes of grey pictures in four IDX files, as they are or in gzip.

#include <cstdint>
#include <string>

#include "cohort/data/source/byte_buffer.h"
#include "cohort/data/source/source.h"

namespace cohort {

// IDX files, the format of MNIST and Fashion-MNIST: pictures and their labels, as they are or in gzip.

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

/// A file that is missing, empty, of another kind, truncated, too long or damaged: Error(kBadInput) that names file, offset, what was
/// expected and what was found. Offsets in a gzip file are those of the inflated content unless the text says otherwise.
IdxImages read_idx_images(const std::string& path);
/// As above; a label that is not below `num_classes` is an error too.
IdxLabels read_idx_labels(const std::string& path, int64_t num_classes);
/// Both, which must have the same count.
void read_idx_pair(const std::string& images_path, const std::string& labels_path, int64_t num_classes, IdxImages& images,
                   IdxLabels& labels);

/// Opens the train files of `folder`, with the t10k files as test set where they are there, or the t10k files alone when there are no train
/// files; plain or .gz. Errors: see open_data.
DataSet open_mnist(const std::string& folder, const DataOptions& options);
/// Likewise; an empty `folder` stands for the one of Debian's package dataset-fashion-mnist.
DataSet open_fashion_mnist(const std::string& folder, const DataOptions& options);

}  // namespace cohort
