#pragma once
// The NPY file format of NumPy: a magic, a header in Python's notation, the raw data (docs/formats/data.md).

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/base/files/tensor_number.h"
#include "cohort/data/source/byte_buffer.h"

namespace cohort {

struct NpyArray {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  ByteBuffer data;  ///< Contiguous, row-major, little-endian.
};

/// Error(kBadInput) that names the file for an invalid or truncated one, and for arrays that are big-endian, in Fortran's order, or of
/// objects, text or complex numbers.
NpyArray read_npy(const std::string& path);

}  // namespace cohort
