#pragma once
// What LibTorch says of tensors that do not fit, with the names that a user knows: the model, the layer or the loss, and what they got.

#include <ATen/core/Tensor.h>

#include <exception>
#include <string>
#include <vector>

namespace cohort {

class LayerGraph;

/// Whether it says that a model does not fit its data or itself: what LibTorch throws, and std::out_of_range of an input that is not there.
/// Not what is no fault of the model (a lost peer, no memory, a GPU's failure), nor an Error, which has its names.
bool is_misfit(const std::exception& error);

/// Whether a user's own code threw it to say what is wrong: std::runtime_error and std::logic_error, not an Error. Only of code that does
/// not exchange, for a lost peer is a std::runtime_error too.
bool is_of_user(const std::exception& error);

/// "LibTorch says: ...": its first line, without the C++ stack trace.
std::string quote(const std::exception& error);

/// What to do where backward found that a tensor which it needs was changed; "" for other errors.
std::string advice_in_place(const std::exception& error);

/// "(20, 4) float32"; "no tensor".
std::string describe_form(const at::Tensor& tensor);

/// Error(kBadInput) in one line: the layer, its weights, what it got from where, what to do, and what `error` says.
[[noreturn]] void fail_in_layer(const LayerGraph& model, size_t layer, const std::vector<at::Tensor>& inputs, const std::exception& error);

}  // namespace cohort
