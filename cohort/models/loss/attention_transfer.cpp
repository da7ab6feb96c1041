// Activation-based attention transfer (Zagoruyko and Komodakis 2017, "Paying more attention to attention", arXiv 1612.03928, section 3.1).
// A layer's attention is where it is active, whatever its channels mean, so that layers of different widths can be compared:
//
//   Q(position) = sum over channels of F(channel, position)^2,   a = Q / ||Q||_2,   distance = ||a_student - a_teacher||_2^2
//
// between 0 and 2 for a sample. Of text a position is one of the sequence. A mean over samples, so that parts of a batch, weighted by their
// samples, add up to the whole. Cost: one pass over both outputs, and one over the student's in backward.
//
// Where we differ: the paper's equation 2 has the norm, its authors' program the mean square over positions; this is the sum of squares,
// which does not depend on the number of positions. Maps of different sizes are pooled by averages, not interpolated.

#include "cohort/models/loss/attention_transfer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/adaptive_avg_pool2d.h>

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/base/files/safetensors.h"

namespace cohort {
namespace {

constexpr double kTiny = 1e-12;  // A layer that gives zeros looks nowhere.

/// {samples, height, width} or {samples, positions}, fp32.
at::Tensor attention_of(const at::Tensor& output) {
  const at::Tensor exact = output.is_quantized() ? output.dequantize() : output.to(at::kFloat);
  return exact.square().sum(output.dim() == 4 ? 1 : 2);
}

at::Tensor pooled(const at::Tensor& attention, int64_t height, int64_t width) {
  if (attention.dim() != 3 || (attention.size(1) == height && attention.size(2) == width)) return attention;
  return at::adaptive_avg_pool2d(attention.unsqueeze(1), {height, width}).squeeze(1);
}

at::Tensor normalised(const at::Tensor& attention) {
  const at::Tensor flat = attention.flatten(1);
  return flat / (flat.square().sum(1, /*keepdim=*/true) + kTiny).sqrt();
}

}  // namespace

std::string why_no_attention(const std::vector<int64_t>& student, const std::vector<int64_t>& teacher) {
  const auto text = [&] { return concat("the student's is ", shape_text(student), " and the teacher's ", shape_text(teacher)); };
  if (student.size() != teacher.size() || (student.size() != 3 && student.size() != 4))
    return text() + "; both must have positions: {samples, channels, height, width}, or of text {samples, positions, width}";
  if (student.size() == 3 && student[1] != teacher[1]) return text() + ": not as many positions";
  return "";
}

at::Tensor attention_distance(const at::Tensor& student, const at::Tensor& teacher) {
  at::Tensor mine = attention_of(student), wanted = attention_of(teacher.detach());
  if (mine.dim() == 3) {
    const int64_t height = std::min(mine.size(1), wanted.size(1)), width = std::min(mine.size(2), wanted.size(2));
    mine = pooled(mine, height, width);
    wanted = pooled(wanted, height, width);
  }
  return (normalised(mine) - normalised(wanted)).square().sum() / static_cast<double>(std::max<int64_t>(1, student.size(0)));
}

}  // namespace cohort
