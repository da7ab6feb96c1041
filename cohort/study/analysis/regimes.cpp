// Where the regimes of S(B) end, by the rules that the published figures were read with:
//   perfect scaling: to the largest B with B S(B) <= 1.25 x that of the smallest B;
//   no further gain: from the smallest B with S <= 1.2 x min S, unless that is the largest B: the curve then still falls.
// They are rules on measured points, not on a fit: fits disagree most where the regimes end.
#include <algorithm>
#include <map>

#include "cohort/study/analysis/fits.h"

namespace cohort::study {

Regimes find_regimes(std::span<const StepsPoint> points) {
  constexpr double kPerfectFactor = 1.25, kFlatFactor = 1.2;
  std::map<double, double> steps;  // By batch size; of several rows the least, as steps to result is a minimum.
  for (const StepsPoint& point : points) {
    const auto [place, is_new] = steps.try_emplace(point.batch_size, point.steps);
    if (!is_new) place->second = std::min(place->second, point.steps);
  }
  Regimes regimes;
  if (steps.empty()) return regimes;
  const double first_examples = steps.begin()->first * steps.begin()->second;
  double least = steps.begin()->second;
  for (const auto& [batch, count] : steps) {
    if (batch * count <= kPerfectFactor * first_examples) regimes.perfect_to = batch;
    least = std::min(least, count);
  }
  for (const auto& [batch, count] : steps) {
    if (count > kFlatFactor * least) continue;
    if (batch != steps.rbegin()->first) regimes.flat_from = batch;
    break;
  }
  return regimes;
}

}  // namespace cohort::study
