#pragma once
// Tensors in files as data: --data npy:DIR and --data safetensors:FILE.

#include <memory>
#include <string>
#include <vector>

#include "cohort/base/files/safetensors.h"
#include "cohort/data/source/source.h"

namespace cohort {

/// `DIR[,task=...][,classes=N][,normalise=...][,seed=N]`: DIR/x.npy and DIR/y.npy, or DIR/train with both, and optionally DIR/val and
/// DIR/test. x is {samples, ...}, y integers {samples} (classes) or floats {samples} or {samples, numbers} (regression); with task=labels 0
/// and 1 {samples, labels}. Error(kBadInput) with file and sample for invalid data; with options.skip_bad invalid samples are skipped.
DataSet open_npy(const std::string& argument, const DataOptions& options);
/// `FILE[,x=NAME][,y=NAME]...`, likewise with the tensors x and y of a file, and optionally x_val, y_val, x_test, y_test.
DataSet open_safetensors(const std::string& argument, const DataOptions& options);

/// A row-major array in memory that lives as long as `owner`.
struct NamedArray {
  std::string name;  ///< For messages.
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const void* data = nullptr;
  std::shared_ptr<const void> owner;
};
/// The same with arrays of a program; `settings` are those of open_npy().
DataSet open_arrays(NamedArray x, NamedArray y, const std::string& settings, const DataOptions& options);

}  // namespace cohort
