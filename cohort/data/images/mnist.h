#pragma once
// MNIST and Fashion-MNIST: ten classes of grey pictures in four IDX files.

#include <string>

#include "cohort/data/source/source.h"

namespace cohort {

/// Opens the train files of `folder`, with the t10k files as test set where they are there, or the t10k files alone when there are no train
/// files; plain or .gz. Errors: see open_data.
DataSet open_mnist(const std::string& folder, const DataOptions& options);
/// Likewise; an empty `folder` stands for the one of Debian's package dataset-fashion-mnist.
DataSet open_fashion_mnist(const std::string& folder, const DataOptions& options);

}  // namespace cohort
