#pragma once
// What c10d hands over, checked and made dense: tensors of any strides become the plain memory that a Call needs.

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <vector>

#include "cohort/comm/transport/transport.h"

namespace cohort {

/// Error(kBadInput) unless `tensor` is a dense CPU tensor. `operation` and `what` ("output") go into the sentence.
void check_tensor(const char* operation, const char* what, const at::Tensor& tensor);
/// The only tensor of a list, checked.
at::Tensor& only_tensor(const char* operation, const char* what, std::vector<at::Tensor>& tensors);
void check_same_type(const char* operation, const at::Tensor& one, const at::Tensor& other);
/// Error(kBadInput) where `tensor` has another number of elements.
void check_elements(const char* operation, const char* what, const at::Tensor& tensor, int64_t expected);

/// Whether its elements lie in order without gaps and as they are (no lazy conjugate).
bool is_plain(const at::Tensor& tensor);
/// The tensor itself, or a plain copy; without gradients.
at::Tensor plain(const at::Tensor& tensor);
/// The tensor itself where it is plain, else fresh memory of its size.
at::Tensor plain_room(const at::Tensor& tensor);

/// One 1-d tensor over tensors that follow one another in one storage; undefined when they do not.
at::Tensor joined_view(const std::vector<at::Tensor>& tensors);
/// All elements one after the other: the view above, or a copy.
at::Tensor joined(const std::vector<at::Tensor>& tensors);
/// Copies consecutive pieces of `flat` into the tensors.
void split_into(const std::vector<at::Tensor>& tensors, const at::Tensor& flat);

/// Error(kBadInput) for what makes no sense for the type, and for PREMUL_SUM.
Reduction reduction_of(const char* operation, const c10d::ReduceOp& op, at::ScalarType type);

/// Elements for each of `size` ranks from rows of dimension 0; no splits: equal parts.
std::vector<size_t> split_counts(const char* what, const at::Tensor& tensor, const std::vector<int64_t>& splits, int size);

}  // namespace cohort
