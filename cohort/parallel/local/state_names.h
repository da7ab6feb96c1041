#pragma once
// What tensors of local steps are called in a checkpoint, beside "model/NAME" and "optimizer/NAME/SLOT" (docs/formats/checkpoint.md):
//   worker-R/optimizer/NAME/SLOT   the optimizer's state of data-parallel worker R, where there are several, each with its own
//   outer/optimizer/NAME/SLOT      that of diloco's outer optimizer

#include <cstdint>
#include <optional>
#include <string>

namespace cohort {

std::string name_of_worker(int64_t worker, const std::string& name);
std::string name_of_outer(const std::string& name);

struct StateName {
  std::optional<int64_t> worker;  ///< Whose it is; none: everybody's.
  bool of_outer = false;
  std::string name;  ///< Without that: "optimizer/NAME/SLOT", "model/NAME".
};
StateName split_state_name(const std::string& name);

}  // namespace cohort
