#pragma once
// What runs when a parameter's gradient of one backward() is complete in `.grad`. LibTorch has room for one such hook a parameter.

#include <functional>

#include "cohort/parallel/common/parameters.h"

namespace cohort {

/// Error(kBadInput), naming the parameter, where it has a hook.
void check_no_gradient_hook(const NamedTensor& parameter);
/// Runs in backward(), without a graph, on the thread that made the gradient. Errors as check_no_gradient_hook().
void set_gradient_hook(const NamedTensor& parameter, std::function<void(const at::Tensor& parameter)> callback);
void remove_gradient_hook(const NamedTensor& parameter);

}  // namespace cohort
