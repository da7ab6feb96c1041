#include "cohort/plan/uneven.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/job/specs/devices.h"
#include "cohort/plan/cost/exchange_forecast.h"

namespace cohort {
namespace {

/// Forward and backward of one rank's part of a step, layer by layer as the forecast has them.
double compute_seconds(const PlanProblem& problem, const Layout& layout, int rank, double share) {
  const int micro_steps = std::max(1, layout.accumulate);
  const DeviceKind& device = problem.cluster.devices[static_cast<size_t>(problem.cluster.device_of_rank(rank))];
  const int64_t samples = largest_piece(share * static_cast<double>(problem.global_batch) / micro_steps);
  const Profile profile = profile_at(problem.profile, {device.name, layout.precision.empty() ? "fp32" : layout.precision, 1, samples});
  double seconds = 0;
  for (const LayerProfile& layer : profile.layers)
    seconds += layer.forward_seconds + layer.backward_input_seconds + layer.backward_weight_seconds;
  return micro_steps * seconds;
}

double waste_of(const PlanProblem& problem, const Layout& layout, const std::vector<double>& shares, double step_seconds) {
  std::vector<double> compute;
  const MeshPlaces places(layout, problem.cluster);
  for (int data = 0; data < layout.dp; ++data)
    compute.push_back(compute_seconds(problem, layout, places.rank(data, 0, 0), shares[static_cast<size_t>(data)]));
  return waiting_share(compute, step_seconds);
}

}  // namespace

double waiting_share(const std::vector<double>& compute_seconds, double step_seconds) {
  const auto workers = static_cast<double>(compute_seconds.size());
  const double most = *std::max_element(compute_seconds.begin(), compute_seconds.end());
  const double total = std::accumulate(compute_seconds.begin(), compute_seconds.end(), 0.0);
  return (most * workers - total) / (workers * std::max(step_seconds, most));
}

std::optional<UnevenForecast> uneven_forecast(const PlanProblem& asked, const RankedPlan& plan) {
  const Layout& layout = plan.candidate.layout;
  if (layout.is_model_parallel() || layout.dp == 1 || layout.shares == "auto") return std::nullopt;
  if (!first_devices(asked.cluster, layout.num_ranks()).is_mixed()) return std::nullopt;
  PlanProblem problem = asked;
  problem.global_batch = plan.global_batch;
  Candidate equal = plan.candidate;
  equal.layout.shares = "equal";
  UnevenForecast out;
  out.shares = parse_shares(layout.shares.empty() ? "equal" : layout.shares).of(layout.dp);
  const double sum = std::accumulate(out.shares.begin(), out.shares.end(), 0.0);
  for (double& share : out.shares) share /= sum;
  out.step_seconds = plan.forecast.step_seconds;
  out.waste = waste_of(problem, layout, out.shares, out.step_seconds);
  out.equal_step_seconds = forecast_step(problem, equal).step_seconds;
  out.equal_waste = waste_of(problem, layout, std::vector<double>(out.shares.size(), 1.0 / layout.dp), out.equal_step_seconds);
  return out;
}

std::string sentence_of(const UnevenForecast& uneven) {
  std::vector<std::string> parts;
  for (const double share : uneven.shares) parts.push_back(percent(share));
  const bool are_equal =
      std::all_of(uneven.shares.begin(), uneven.shares.end(), [&](double share) { return std::abs(share - uneven.shares.front()) < 1e-9; });
  const std::string equal = concat("with equal shares a step takes ", human_seconds(uneven.equal_step_seconds), ", and ",
                                   percent(uneven.equal_waste), " of the workers' time is waiting for the slowest");
  if (are_equal) return "workers are not equally fast: " + equal;
  return concat("workers are not equally fast, so their shares of the batch are ", join(parts, ", "), ": ", equal, "; with these ",
                human_seconds(uneven.step_seconds), " and ", percent(uneven.waste));
}

std::vector<std::string> sentences_of_larger(const MachineAnswer& found) {
  std::vector<std::string> out;
  for (const MachineAnswer::Tried& tried : found.tried) {
    const int workers = tried.request.problem.cluster.num_devices();
    if (!tried.plan || workers <= found.request.problem.cluster.num_devices()) continue;
    if (const auto uneven = uneven_forecast(tried.request.problem, *tried.plan))
      out.push_back(concat(workers, " workers would take ", human_seconds(uneven->step_seconds), " a step: ", sentence_of(*uneven)));
  }
  return out;
}

Json to_json(const UnevenForecast& uneven) {
  return {{"shares", uneven.shares},
          {"predicted_step_seconds", uneven.step_seconds},
          {"predicted_waste", uneven.waste},
          {"predicted_equal_step_seconds", uneven.equal_step_seconds},
          {"predicted_equal_waste", uneven.equal_waste}};
}

}  // namespace cohort
