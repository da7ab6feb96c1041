#pragma once
// Tensors in files as data: --data npy:DIR and --data safetensors:FILE.

#include <memory>
#include <string>
#include <vector>

#include "cohort/base/files/safetensors.h"
#include "cohort/data/source/source.h"

namespace cohort {

/// `DIR[,task=...][,classes=N][,normalise=...][,seed=N]`: DIR/x.npy and DIR/y.npy, or DIR/train with both and DIR/val and DIR/test beside
/// it. x is {samples, ...}, y whole numbers {samples} (classes) or floating-point ones {samples} or {samples, numbers} (a regression);
/// with task=labels 0 and 1 {samples, labels}. Error(kBadInput) that names file and sample for what does not fit; with options.skip_bad
/// samples that are not finite are left out.
DataSet open_npy(const std::string& argument, const DataOptions& options);
/// `FILE[,x=NAME][,y=NAME]...` and the rest likewise: the tensors x and y of a file, and where they are there x_val, y_val, x_test, y_test.
DataSet open_safetensors(const std::string& argument, const DataOptions& options);

/// Numbers in memory, row by row, that live as long as `owner`.
struct NamedArray {
  std::string name;  ///< For messages.
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const void* data = nullptr;
  std::shared_ptr<const void> owner;
};
/// The same of arrays that a program has; `settings` as behind the path of open_npy.
DataSet open_arrays(NamedArray x, NamedArray y, const std::string& settings, const DataOptions& options);

}  // namespace cohort
