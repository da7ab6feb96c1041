#pragma once
// Fragments in turn: the model is cut into F parts, and each is exchanged after a step of its own of a round of H steps. Torch-free.

#include <cstdint>
#include <vector>

namespace cohort {

/// A run of elements of one parameter.
struct FragmentPiece {
  size_t parameter = 0;
  int64_t begin = 0, count = 0;
  bool operator==(const FragmentPiece&) const = default;
};

/// What fragment `fragment` of `num_fragments` has of parameters with that many elements (0: not to be counted), one after the other:
/// slices that differ by one element at most, wherever they cut parameters.
std::vector<FragmentPiece> pieces_of_fragment(const std::vector<int64_t>& elements, int fragment, int num_fragments);

/// The step of a round, from 1 to `steps`, after which it is exchanged: evenly apart, the last fragment's at the end. `steps` is at least
/// `num_fragments`, so no two have the same.
int64_t step_of_fragment(int fragment, int num_fragments, int64_t steps);

}  // namespace cohort
