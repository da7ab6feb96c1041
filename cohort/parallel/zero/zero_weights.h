#pragma once
// The weights of a model in flat units, of which each rank owns a slice.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/parallel/zero/unit_memory.h"
#include "cohort/parallel/zero/zero_unit.h"

namespace cohort {

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
  /// Starts to send this rank's slice to all and to receive theirs. Not for stage 3.
  std::unique_ptr<Pending> start_gather(size_t index);

 private:
  void move_in(size_t index, const std::vector<NamedTensor>& parameters, UnitMemory& memory, const ZeroWeightsOptions& options);

  Group group_;
  std::vector<ZeroUnit> units_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> wholes_, slices_;
};

/// Error(kBadInput), naming it, for a parameter that is not dense and contiguous, lies on another device than the first one or shares
/// memory with another one.
void check_divisible(const std::vector<NamedTensor>& parameters);

}  // namespace cohort
