#pragma once
// The flat units of ZeRO: the division of parameters, memory lent to units, and their weights.

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/TensorOptions.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/group.h"

namespace cohort {

struct NamedTensor;

// Division of parameters into flat units, each cut into one slice per rank. Pure arithmetic.

/// Parameters that are exchanged together: of one type and device, either all trained or all frozen. Rank r owns elements [r x
/// slice_elements, (r + 1) x slice_elements) of the unit.
struct ZeroUnit {
  std::vector<int> parameters;   ///< Indices, in registration order.
  std::vector<int64_t> offsets;  ///< Of their first elements, multiples of 64 bytes.
  int64_t num_elements = 0;      ///< With padding: slice_elements x ranks.
  int64_t slice_elements = 0;    ///< A multiple of 64 bytes, at least one, so that no exchange is empty.
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

/// Units of parameters of one device, in registration order, of at most `unit_bytes` each: whole modules (names up to the last dot) as far
/// as they fit, so that a layer's weight and bias are together. A larger module is cut between its parameters; parameters are never cut.
std::vector<ZeroUnit> plan_units(const std::vector<NamedTensor>& parameters, int64_t unit_bytes, int num_ranks);

/// A rank's part of a unit. Every element belongs to one rank; an empty parameter is one empty piece of rank 0.
std::vector<SlicePiece> slice_pieces(const ZeroUnit& unit, const std::vector<NamedTensor>& parameters, int rank);

/// "unit 2 (conv1.weight ... conv1.bias, 1024 bytes)", for messages.
std::string unit_name(const ZeroUnit& unit, const std::vector<NamedTensor>& parameters, size_t index);

// Memory lent to tensors temporarily: whole units of sharded weights and gradients exist only while needed.

/// A 1-d tensor of `num_elements` without memory: access to its elements, and creating views of it, throws c10::Error until
/// UnitMemory::attach().
at::Tensor without_memory(int64_t num_elements, at::TensorOptions options);

/// Whether a tensor (or the tensor it is a view of) has memory now.
bool has_memory(const at::Tensor& tensor);

/// Lends blocks on a tensor's device and keeps returned ones for reuse, so that pages are not created for every layer of every step. One
/// thread at a time. On a GPU a block may be lent again while kernels of its last user still run: all uses are on one stream, or ordered
/// with it as c10d's are.
class UnitMemory {
 public:
  /// Returned blocks are freed when lent and kept blocks together would exceed `kept_bytes`.
  explicit UnitMemory(int64_t kept_bytes) : kept_bytes_(kept_bytes) {}

  /// Gives the storage of the tensor and its views uninitialized memory.
  void attach(const at::Tensor& tensor);
  /// Takes it back.
  void detach(const at::Tensor& tensor);

  int64_t lent_bytes() const { return lent_bytes_; }
  /// The peak of lent and kept memory.
  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  struct Block {
    size_t bytes = 0;
    c10::DataPtr data;
  };
  Block take(size_t bytes, c10::Device device);

  int64_t kept_bytes_;
  int64_t lent_bytes_ = 0, idle_bytes_ = 0, peak_bytes_ = 0;
  std::vector<Block> idle_;
  std::vector<std::pair<const void*, size_t>> lent_;  ///< Storage -> bytes of its block.
};

// The weights of a model in flat units, of which each rank owns a slice.

struct ZeroWeightsOptions {
  bool keep_slices_only = false;  ///< Stage 3: whole units have no memory afterwards.
  bool broadcast_model = true;
};

/// One per model and rank. The parameters become aliases of their units.
class ZeroWeights {
 public:
  /// Collective, unit by unit, so that no more than a unit is held twice. Error(kBadInput) naming the parameter that cannot be divided.
  ZeroWeights(Group group, const std::vector<NamedTensor>& parameters, std::vector<ZeroUnit> units, UnitMemory& memory,
              ZeroWeightsOptions options);

  size_t size() const { return units_.size(); }
  const ZeroUnit& unit(size_t index) const { return units_[index]; }
  const std::string& name(size_t index) const { return names_[index]; }
  const at::Tensor& whole(size_t index) const { return wholes_[index]; }
  const at::Tensor& slice(size_t index) const { return slices_[index]; }
  /// Starts the all-gather of a unit's slices. Not for stage 3.
  std::unique_ptr<Pending> start_gather(size_t index);

 private:
  void move_in(size_t index, const std::vector<NamedTensor>& parameters, UnitMemory& memory, const ZeroWeightsOptions& options);

  Group group_;
  std::vector<ZeroUnit> units_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> wholes_, slices_;
};

/// Error(kBadInput), naming it, for a parameter that is not dense and contiguous, lies on another device than the first one, or shares
/// memory with another one.
void check_divisible(const std::vector<NamedTensor>& parameters);

}  // namespace cohort
