// relative difference = max|a - b| / max(max|a|, tiny), a the reference and tiny the smallest normal double: relative to the whole tensor,
// because the relative error of elements near zero (cancellation) is meaningless. Cost: one pass over both tensors in double; tensors of
// one piece are read where they are mapped.

#include "cohort/checkpoint/compare.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <set>
#include <tuple>

#include "cohort/base/files/tensor_number.h"

namespace cohort {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double distance(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;  // Including equal infinities, whose difference is NaN.
  const double difference = std::abs(a - b);
  return std::isnan(difference) ? kInfinity : difference;
}

/// The tensor in the mapped file, or in `buffer` filled from its pieces.
const void* whole(const Checkpoint& checkpoint, const std::string& name, int64_t bytes, std::vector<std::byte>& buffer) {
  if (const void* mapped = checkpoint.contiguous_data(name)) return mapped;
  buffer.resize(static_cast<size_t>(bytes));
  checkpoint.read_whole(name, buffer.data());
  return buffer.data();
}

TensorDifference apart(TensorDifference::Kind kind, int64_t num_elements) {
  return {"", kind, num_elements, false, kInfinity, kInfinity, kInfinity};
}

/// Initial values of `reference`'s tensor (zeros if `initial` lacks it); null without `initial`.
const void* initial_values(const Checkpoint* initial, const Checkpoint& reference, const std::string& name, int64_t bytes,
                           std::vector<std::byte>& buffer) {
  if (initial == nullptr) return nullptr;
  const bool known = initial->has(name) && initial->dtype(name) == reference.dtype(name) && initial->shape(name) == reference.shape(name);
  if (known) return whole(*initial, name, bytes, buffer);
  buffer.assign(static_cast<size_t>(bytes), std::byte{0});
  return buffer.data();
}

TensorDifference compare_tensor(const Checkpoint& reference, const Checkpoint& other, const Checkpoint* initial, const std::string& name) {
  using Kind = TensorDifference::Kind;
  if (!reference.has(name)) return apart(Kind::kMissingInReference, checked_num_elements(other.shape(name)));
  const int64_t elements = checked_num_elements(reference.shape(name));
  if (!other.has(name)) return apart(Kind::kMissingInOther, elements);
  const DType dtype = reference.dtype(name);
  if (other.dtype(name) != dtype || other.shape(name) != reference.shape(name)) return apart(Kind::kOtherTypeOrShape, elements);
  std::vector<std::byte> buffer_a, buffer_b, buffer_c;
  const int64_t bytes = elements * dtype_bytes(dtype);
  return compare_values(dtype, whole(reference, name, bytes, buffer_a), whole(other, name, bytes, buffer_b), elements,
                        initial_values(initial, reference, name, bytes, buffer_c));
}

}  // namespace

double TensorDifference::difference_of_update() const {
  if (is_equal()) return 0;
  return max_update > 0 ? max_difference / max_update : kInfinity;
}

TensorDifference compare_values(DType dtype, const void* reference, const void* other, int64_t num_elements, const void* initial) {
  TensorDifference result;
  result.num_elements = num_elements;
  result.bitwise_equal = num_elements == 0 || std::memcmp(reference, other, static_cast<size_t>(num_elements * dtype_bytes(dtype))) == 0;
  for (int64_t i = 0; i < num_elements; ++i) {
    const double a = number_of(dtype, reference, i);
    if (std::isfinite(a)) result.max_reference = std::max(result.max_reference, std::abs(a));
    const double difference = result.bitwise_equal ? 0 : distance(a, number_of(dtype, other, i));
    result.max_difference = std::max(result.max_difference, difference);
    if (initial == nullptr) continue;
    const double update = distance(a, number_of(dtype, initial, i));
    result.max_update = std::max(result.max_update, update);
    result.squared_difference += difference * difference;
    result.squared_update += update * update;
  }
  if (is_float(dtype)) {
    result.relative_difference = result.max_difference / std::max(result.max_reference, std::numeric_limits<double>::min());
  } else {
    result.relative_difference = result.bitwise_equal ? 0 : kInfinity;
  }
  return result;
}

double compare_updates(const Checkpoint& reference, const Checkpoint& initial, const Checkpoint& other, const Checkpoint& other_initial,
                       const std::string& name) {
  if (!reference.has(name) || !other.has(name) || reference.dtype(name) != other.dtype(name) || reference.shape(name) != other.shape(name))
    return kInfinity;
  const DType dtype = reference.dtype(name);
  const int64_t elements = checked_num_elements(reference.shape(name)), bytes = elements * dtype_bytes(dtype);
  std::vector<std::byte> buffers[4];
  const void* const a = whole(reference, name, bytes, buffers[0]);
  const void* const b = whole(other, name, bytes, buffers[1]);
  const void* const a_began = initial_values(&initial, reference, name, bytes, buffers[2]);
  const void* const b_began = initial_values(&other_initial, other, name, bytes, buffers[3]);
  double apart = 0;
  for (int64_t i = 0; i < elements; ++i)
    apart = std::max(
        apart, distance(number_of(dtype, a, i) - number_of(dtype, a_began, i), number_of(dtype, b, i) - number_of(dtype, b_began, i)));
  return apart;
}

std::vector<TensorDifference> compare_checkpoints(const Checkpoint& reference, const Checkpoint& other, const Checkpoint* initial) {
  std::set<std::string> names;
  for (const Checkpoint* checkpoint : {&reference, &other})
    for (const std::string& name : checkpoint->tensor_names()) names.insert(name);
  std::vector<TensorDifference> differences;
  for (const std::string& name : names) {
    differences.push_back(compare_tensor(reference, other, initial, name));
    differences.back().name = name;
  }
  std::sort(differences.begin(), differences.end(), [initial](const TensorDifference& a, const TensorDifference& b) {
    const bool a_compared = a.kind == TensorDifference::Kind::kCompared, b_compared = b.kind == TensorDifference::Kind::kCompared;
    const auto size = [initial](const TensorDifference& of) { return initial ? of.difference_of_update() : of.relative_difference; };
    const double a_size = size(a), b_size = size(b);
    return std::tie(a_compared, b_size, a.name) < std::tie(b_compared, a_size, b.name);
  });
  return differences;
}

}  // namespace cohort
