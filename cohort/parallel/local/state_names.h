#pragma once
// What tensors of local steps are called in a checkpoint, beside "model/NAME" and "optimizer/NAME/SLOT" (docs/formats/checkpoint.md):
//   worker-R/optimizer/NAME/SLOT   the optimizer's state of data-parallel worker R, where there are several, each with its own
//   outer/optimizer/NAME/SLOT      that of diloco's outer optimizer
//   worker-R/weights/NAME          with fragments in turn: the weights of worker R, where "model/NAME" is what was exchanged last
//   worker-R/round/F/samples       of each of F fragments, the samples of worker R and of all since its last exchange

#include <cstdint>
#include <optional>
#include <string>

namespace cohort {

std::string name_of_worker(int64_t worker, const std::string& name);
std::string name_of_outer(const std::string& name);
std::string name_of_own_weights(int64_t worker, const std::string& parameter);
std::string name_of_round(int64_t worker, int num_fragments);

struct StateName {
  std::optional<int64_t> worker;  ///< Whose it is; none: everybody's.
  bool of_outer = false;
  bool of_fragments = false;  ///< Own weights or samples.
  std::string name;           ///< Without that: "optimizer/NAME/SLOT", "model/NAME", "round/F/samples".
};
StateName split_state_name(const std::string& name);

}  // namespace cohort
