#pragma once
// How far what a student's layer looks at is from what its teacher's looks at.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace cohort {

/// One number, a mean over samples. Both {samples, channels, height, width} or {samples, positions, width}, of any channels or widths; maps
/// of different sizes are pooled to the smaller one. fp32 within. No gradient goes to `teacher`.
at::Tensor attention_distance(const at::Tensor& student, const at::Tensor& teacher);

/// Why two outputs of these sizes cannot be compared; "" where they can.
std::string why_no_attention(const std::vector<int64_t>& student, const std::vector<int64_t>& teacher);

}  // namespace cohort
