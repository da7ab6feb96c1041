#pragma once
// Optimizer arithmetic on plain arrays: one pass over weights, gradient and state. No LibTorch.
//
// As defined by LibTorch (torch/optim), with g the gradient:
//   sgd       g += decay w;  w -= lr g
//   momentum  g += decay w;  v = m v + g;  w -= lr v                      nesterov: w -= lr (g + m v)
//   adam      g += decay w;  a = b1 a + (1-b1) g;  s = b2 s + (1-b2) g^2;  w -= lr / (1-b1^t) a / (sqrt(s) / sqrt(1-b2^t) + eps)
//   adamw     w -= lr decay w, then as adam without decay in g
//
// An element's result depends on that element's values only, so it has the same bits however the arrays are divided.

#include <cstddef>
#include <cstdint>

#include "cohort/base/export.h"
#include "cohort/job/update_rule.h"

namespace cohort {

struct UpdateArguments {
  double learning_rate = 0;
  double gradient_factor = 1;  ///< Multiplies the gradient first (clipping, loss scale, mean).
  int64_t num_updates = 1;     ///< t of adam and adamw, including this update.
};

/// Updates `count` elements. Arrays do not overlap; `slots` are those of UpdateRule::slots(). Any thread.
COHORT_API void update(const UpdateRule& rule, const UpdateArguments& arguments, float* weights, const float* gradient, float* const* slots,
                       size_t count);
COHORT_API void update(const UpdateRule& rule, const UpdateArguments& arguments, double* weights, const double* gradient,
                       double* const* slots, size_t count);

/// Updates with the gradient ((gradients[0] + gradients[1]) + gradients[2]) + ..., at least one array, in the same pass without storing the
/// sum.
COHORT_API void update_by_sum(const UpdateRule& rule, const UpdateArguments& arguments, float* weights, const float* const* gradients,
                              size_t num_gradients, float* const* slots, size_t count);
COHORT_API void update_by_sum(const UpdateRule& rule, const UpdateArguments& arguments, double* weights, const double* const* gradients,
                              size_t num_gradients, double* const* slots, size_t count);

}  // namespace cohort
