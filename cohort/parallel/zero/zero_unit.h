#pragma once
// How ZeRO divides parameters: flat units, each cut into one slice a rank. Pure arithmetic.

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/parallel/common/parameters.h"

namespace cohort {

/// Parameters that are exchanged together: of one type and device, either all trained or all frozen. Rank r owns elements [r x
/// slice_elements, (r + 1) x slice_elements) of the unit.
struct ZeroUnit {
  std::vector<int> parameters;   ///< Indices, in registration order.
  std::vector<int64_t> offsets;  ///< Of their first elements; places begin at multiples of 64 bytes.
  int64_t num_elements = 0;      ///< Of all places, padding included: slice_elements x ranks.
  int64_t slice_elements = 0;    ///< A multiple of 64 bytes; at least one line, so that no exchange is empty.
  at::ScalarType type = at::kFloat;
  bool trained = true;
  c10::Device device = c10::Device(c10::DeviceType::CPU);

  at::TensorOptions options() const { return at::TensorOptions(type).device(device); }
  int64_t bytes() const { return num_elements * static_cast<int64_t>(c10::elementSize(type)); }
  int64_t slice_bytes() const { return slice_elements * static_cast<int64_t>(c10::elementSize(type)); }
};

/// Elements [begin, begin + count) of a parameter at `slice_offset` of a rank's slice.
struct SlicePiece {
  int parameter = 0;
  int64_t begin = 0, count = 0, slice_offset = 0;
};

/// Units of parameters of one device, in registration order, of at most `unit_bytes` each: whole modules (what is left of the last dot in a
/// name) as far as they fit, so that a layer's weight and bias are together; a module that is larger is cut between its parameters, a
/// parameter is never cut.
std::vector<ZeroUnit> plan_units(const std::vector<NamedTensor>& parameters, int64_t unit_bytes, int num_ranks);

/// What rank `rank` owns of a unit. Every element belongs to one rank; an empty parameter is one empty piece of rank 0.
std::vector<SlicePiece> slice_pieces(const ZeroUnit& unit, const std::vector<NamedTensor>& parameters, int rank);

/// "unit 2 (conv1.weight ... conv1.bias, 1024 bytes)", for messages.
std::string unit_name(const ZeroUnit& unit, const std::vector<NamedTensor>& parameters, size_t index);

}  // namespace cohort
