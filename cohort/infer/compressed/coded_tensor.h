#pragma once
// Encoding of tensors in a compressed file: weights as integer codes with scales, and sparse weights without their zeros.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cohort/base/files/safetensors.h"
#include "cohort/infer/compressed/compressed_form.h"

namespace cohort {

/// Fills `destination` with the tensor of that name: TrainedFile::read, or a reader of tensors in memory.
using ReadTensor = std::function<void(const std::string& name, DType dtype, const std::vector<int64_t>& shape, void* destination)>;

/// Symmetric codes: a code of 0 is the number 0.
struct Codes {
  at::Tensor codes;   ///< {rows, columns...} int8; with 4 bits {rows, (columns + 1) / 2} bytes, the low half first.
  at::Tensor scales;  ///< {rows, groups} float, all above 0.
};

/// The nearest codes of a float tensor of two or more dimensions: -127 to 127, with 4 bits -7 to 7. The scale of a row (or group) maps its
/// largest number to the largest code.
Codes encode_rows(const at::Tensor& tensor, int bits, int64_t group);
/// The floats of the codes, {how.shape}.
at::Tensor decode_rows(const Codes& codes, const CodedTensor& how);
/// Reads codes and scales. Error(kBadInput) where a scale is not positive and finite, or as in `read`.
Codes read_codes(const std::string& name, const CodedTensor& how, const ReadTensor& read);

/// The numbers that are not zero, in order, and a bit for every number: element i is bit i % 8 of byte i / 8.
struct SparseValues {
  at::Tensor values;  ///< {kept} float.
  at::Tensor mask;    ///< {(elements + 7) / 8} bytes.
};

/// `tensor`: floats. Decoding is exact but for the sign of zeros.
SparseValues encode_sparse(const at::Tensor& tensor);
/// Bytes of values and mask for a tensor of `num_elements`, of which `kept` are not zero.
int64_t sparse_bytes(int64_t num_elements, int64_t kept);
/// The float tensor of `how.shape` from NAME and NAME + ".mask". Error(kBadInput) where the mask does not have as many ones as there are
/// values, or as in `read`.
at::Tensor read_sparse(const std::string& name, const CodedTensor& how, const ReadTensor& read);

}  // namespace cohort
