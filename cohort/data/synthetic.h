#pragma once
// Samples made up from a seed: no file, any size, and something to learn in them.

#include <cstdint>
#include <string>

#include "cohort/data/source/source.h"

namespace cohort {

/// `SHAPE[,classes=10 or labels=N][,samples=10000][,noise=1.0][,seed=N]`, SHAPE as 784, 3x32x32 (channels, height, width) or text. Sample i
/// is a function of (seed, i) alone, that of options where the specification has none. Wrong specification: Error(kBadInput).
DataSet open_synthetic(const std::string& specification, const DataOptions& options);
uint64_t seed_of_synthetic(const std::string& specification, uint64_t otherwise);

}  // namespace cohort
