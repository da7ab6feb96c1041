#pragma once
// Errors of LibTorch about tensors that do not fit, reworded with the names that a user knows: model, layer or loss, and their inputs.

#include <ATen/core/Tensor.h>

#include <exception>
#include <string>
#include <vector>

namespace cohort {

class LayerGraph;

/// Whether `error` says that a model does not fit its data or itself: an error of LibTorch, or std::out_of_range for a missing input. Not a
/// lost peer, lack of memory or a GPU failure, nor an Error, which already has its names.
bool is_mismatch_error(const std::exception& error);

/// Whether a user's own code threw `error`: std::runtime_error or std::logic_error, not an Error. Only for code without communication: a
/// lost peer is a std::runtime_error too.
bool is_user_exception(const std::exception& error);

/// "LibTorch says: ..." with the first line of the error, without the C++ stack trace.
std::string quote(const std::exception& error);

/// Advice where backward found that a tensor which it needs was changed in place; "" for other errors.
std::string inplace_advice(const std::exception& error);

/// "20, 4"
std::string describe_sizes(at::IntArrayRef sizes);
/// "(20, 4) float32"; "no tensor".
std::string describe_tensor(const at::Tensor& tensor);

/// Error(kBadInput) in one line: the layer, its weights, its inputs and their sources, advice, and `error`.
[[noreturn]] void fail_in_layer(const LayerGraph& model, size_t layer, const std::vector<at::Tensor>& inputs, const std::exception& error);

}  // namespace cohort
