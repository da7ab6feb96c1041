#pragma once
// CIFAR-10 in its binary version: ten classes of 32x32 colour pictures.

#include <string>

#include "cohort/data/source/source.h"

namespace cohort {

/// Opens data_batch_1.bin ... data_batch_5.bin of `folder`: those that are there, in this order, at least one; test_batch.bin is the test
/// set, where it is there. Errors: see open_data.
DataSet open_cifar10(const std::string& folder, const DataOptions& options);

}  // namespace cohort
