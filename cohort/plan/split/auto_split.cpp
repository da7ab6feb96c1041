#include "cohort/plan/split/auto_split.h"

#include <algorithm>
#include <limits>

#include "cohort/plan/cost/pipeline_forecast.h"
#include "cohort/plan/split/improve_split.h"
#include "cohort/schedule/stage_graph.h"

namespace cohort {

Split auto_split(const Profile& profile, const Layout& layout, const SplitOptions& options, const std::vector<int>& worker_of_stage) {
  const Split best = best_split(profile, options);
  const auto with = [&](const std::vector<int>& first_layer) {
    return given_split(profile, options, {first_layer.begin() + 1, first_layer.end()});
  };
  const auto seconds = [&](const std::vector<int>& first_layer) {
    const bool fits = options.memory_bytes == 0 || most_memory_bytes(with(first_layer), options.num_ranks) <= options.memory_bytes;
    if (!fits) return std::numeric_limits<double>::infinity();
    return forecast_step_seconds(profile, layout, {stage_of_layers(first_layer, profile.layers.size()), worker_of_stage}, {});
  };
  const std::vector<int> found =
      improve_split(static_cast<int>(profile.layers.size()), {best.first_layer, even_split(profile, options).first_layer}, seconds);
  return found == best.first_layer ? best : with(found);
}

}  // namespace cohort
