#pragma once
// Weights most of which are zero, without the zeros. Exact: what comes back is what went in, but for the sign of a zero.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "cohort/infer/compressed/coded_tensor.h"

namespace cohort {

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
