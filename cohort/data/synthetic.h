#pragma once
// Samples made up from a seed: no file, any size, and something to learn in them.

#include <string>

#include "cohort/data/source.h"

namespace cohort {

/// `SHAPE[,classes=10 or labels=N][,samples=10000][,noise=1.0]`, SHAPE as 784, 3x32x32 (channels, height, width) or text. Sample i is a
/// function of (options.seed, i) alone. Wrong specification: Error(kBadInput).
DataSet open_synthetic(const std::string& specification, const DataOptions& options);

}  // namespace cohort
