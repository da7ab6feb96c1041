#include "cohort/parallel/local/fragments.h"

#include <algorithm>
#include <numeric>

namespace cohort {

std::vector<FragmentPiece> pieces_of_fragment(const std::vector<int64_t>& elements, int fragment, int num_fragments) {
  const int64_t all = std::accumulate(elements.begin(), elements.end(), int64_t{0});
  // Without the product of `all` and a fragment's number, which might not fit.
  const auto cut = [&](int64_t number) { return all / num_fragments * number + std::min(number, all % num_fragments); };
  const int64_t begin = cut(fragment), end = cut(fragment + 1);
  std::vector<FragmentPiece> pieces;
  int64_t first = 0;
  for (size_t parameter = 0; parameter < elements.size(); ++parameter) {
    const int64_t from = std::max(begin, first), to = std::min(end, first + elements[parameter]);
    if (from < to) pieces.push_back({parameter, from - first, to - from});
    first += elements[parameter];
  }
  return pieces;
}

int64_t step_of_fragment(int fragment, int num_fragments, int64_t steps) { return (fragment + int64_t{1}) * steps / num_fragments; }

}  // namespace cohort
