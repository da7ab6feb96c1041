#include "cohort/parallel/local/fragments.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <numeric>

using namespace cohort;
using Pieces = std::vector<FragmentPiece>;

TEST_CASE("fragments: each element is in one of them, in order, and none is larger by more than one element") {
  const std::vector<int64_t> elements{7, 0, 1, 20, 3};
  for (const int num : {1, 2, 3, 4, 7, 31, 40}) {
    CAPTURE(num);
    std::vector<int64_t> next(elements.size(), 0);
    int64_t least = std::numeric_limits<int64_t>::max(), most = 0;
    for (int fragment = 0; fragment < num; ++fragment) {
      int64_t size = 0;
      for (const FragmentPiece& piece : pieces_of_fragment(elements, fragment, num)) {
        CHECK(piece.begin == next[piece.parameter]);
        CHECK(piece.count > 0);
        next[piece.parameter] += piece.count;
        size += piece.count;
      }
      least = std::min(least, size), most = std::max(most, size);
    }
    CHECK(next == elements);
    CHECK(most - least <= 1);
  }
  CHECK((pieces_of_fragment(elements, 0, 1) == Pieces{{0, 0, 7}, {2, 0, 1}, {3, 0, 20}, {4, 0, 3}}));
  CHECK((pieces_of_fragment(elements, 1, 2) == Pieces{{3, 8, 12}, {4, 0, 3}}));
  CHECK(pieces_of_fragment({}, 0, 3).empty());
}

TEST_CASE("fragments: steps of a round rise, no two are the same, and the last is its end") {
  for (const int64_t steps : {1, 2, 5, 8, 500})
    for (int num = 1; num <= std::min<int64_t>(steps, 9); ++num) {
      CAPTURE(steps);
      CAPTURE(num);
      int64_t before = 0;
      for (int fragment = 0; fragment < num; ++fragment) {
        CHECK(step_of_fragment(fragment, num, steps) > before);
        before = step_of_fragment(fragment, num, steps);
      }
      CHECK(before == steps);
    }
  CHECK(step_of_fragment(0, 4, 8) == 2);
}
