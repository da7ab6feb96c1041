#pragma once
// Tensors of a compressed file and back: weights as whole numbers with scales, and those most of which are zero without the zeros.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cohort/base/files/safetensors.h"
#include "cohort/infer/compressed/compressed_form.h"

namespace cohort {

// Weights as whole numbers, and back. Symmetric: a code of 0 is the number 0, so that sums of products need no correction for it.

/// Fills `destination` with the tensor of that name: TrainedFile::read, or what does the same of tensors in memory.
using ReadTensor = std::function<void(const std::string& name, DType dtype, const std::vector<int64_t>& shape, void* destination)>;

struct Codes {
  at::Tensor codes;   ///< {rows, columns...} int8; of 4 bits {rows, (columns + 1) / 2} bytes, the low half first.
  at::Tensor scales;  ///< {rows, groups} float, all above 0.
};

/// The nearest codes of a float tensor of two or more dimensions: from -127 to 127, of 4 bits from -7 to 7. Scales are such that the
/// largest number of a row (or group) has the largest code.
Codes encode_rows(const at::Tensor& tensor, int bits, int64_t group);
/// The floats that codes stand for, of `how.shape`.
at::Tensor decode_rows(const Codes& codes, const CodedTensor& how);
/// Reads codes and scales. Error(kBadInput) where a scale is no positive number, or as `read` has it.
Codes read_codes(const std::string& name, const CodedTensor& how, const ReadTensor& read);

// Weights most of which are zero, without the zeros. Exact: what comes back is what went in, but for the sign of a zero.

/// Numbers that are not zero, in their order, and a bit for every number: element i is bit i % 8 of byte i / 8.
struct SparseValues {
  at::Tensor values;  ///< {kept} float.
  at::Tensor mask;    ///< {(elements + 7) / 8} bytes.
};

/// Of a float tensor.
SparseValues encode_sparse(const at::Tensor& tensor);
/// Bytes of both for a tensor of `num_elements`, of which `kept` are not zero.
int64_t sparse_bytes(int64_t num_elements, int64_t kept);
/// The float tensor of `how.shape`, from NAME and NAME + ".mask". Error(kBadInput) where the mask has another number of ones than values,
/// or as `read` has it.
at::Tensor read_sparse(const std::string& name, const CodedTensor& how, const ReadTensor& read);

}  // namespace cohort
