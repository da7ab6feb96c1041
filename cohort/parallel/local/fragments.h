#pragma once
// Fragments of a model for local steps, and names of their checkpoint entries. Torch-free.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cohort {

// The model is cut into F fragments, each exchanged after a step of its own of a round of H steps.

/// Consecutive elements of one parameter.
struct FragmentPiece {
  size_t parameter = 0;
  int64_t begin = 0, count = 0;
  bool operator==(const FragmentPiece&) const = default;
};

/// The slices of parameters, with `elements` elements each (0: excluded), that form one fragment: fragments differ by one element at most
/// and may cut parameters.
std::vector<FragmentPiece> pieces_of_fragment(const std::vector<int64_t>& elements, int fragment, int num_fragments);

/// The step of a round, from 1 to `steps`, after which a fragment is exchanged: evenly spaced, the last fragment's at the end. `steps` is
/// at least `num_fragments`, so all differ.
int64_t step_of_fragment(int fragment, int num_fragments, int64_t steps);

// Names of checkpoint tensors, besides "model/NAME" and "optimizer/NAME/SLOT" (docs/formats/checkpoint.md):
//   worker-R/optimizer/NAME/SLOT   the optimizer's state of data-parallel worker R, where there are several, each with its own
//   outer/optimizer/NAME/SLOT      that of diloco's outer optimizer
//   worker-R/weights/NAME          with fragments in turn: the weights of worker R, where "model/NAME" is what was exchanged last
//   worker-R/round/F/samples       of each of F fragments, the samples of worker R and of all since its last exchange

std::string name_of_worker(int64_t worker, const std::string& name);
std::string name_of_outer(const std::string& name);
std::string name_of_own_weights(int64_t worker, const std::string& parameter);
std::string name_of_round(int64_t worker, int num_fragments);

struct StateName {
  std::optional<int64_t> worker;  ///< Owner; none: shared by all.
  bool of_outer = false;
  bool of_fragments = false;  ///< Own weights or samples.
  std::string name;           ///< Without the prefix: "optimizer/NAME/SLOT", "model/NAME", "round/F/samples".
};
StateName split_state_name(const std::string& name);

}  // namespace cohort
