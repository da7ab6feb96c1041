// Plans outside the class of joint_search.cpp, for models and clusters that are small enough to search:
//
//   branches    place_branches() (plan/cut/branches.cpp) gives parallel branches to different workers, so that a worker may have
//               several stages that are not adjacent; also as replicas where devices are left
//   replicas    search_stages() (plan/cut/downsets.cpp) gives a slow stage more devices: micro-batch k goes to replica k mod r
//
// Each is forecast for several numbers of micro-batches. Nothing is proved about them: where one is the best plan, the bound of the search
// falls back to the area, which holds for any placement.
#include "cohort/plan/search/cut_forecasts.h"

#include <algorithm>
#include <limits>
#include <set>

#include "cohort/job/refusals.h"
#include "cohort/plan/cut/downsets.h"
#include "cohort/plan/cut/split.h"

namespace cohort {
namespace {

constexpr int kMostWorkers = 16, kMostLayers = 200, kMostMicroBatches = 64;
constexpr double kStageSearchSeconds = 0.2;

class BranchPlans {
 public:
  BranchPlans(const SearchSpace& space, const std::string& precision, const GoalSteps& point, CutForecasts& evaluation)
      : space_(space), model_(space.request().problem.profile), precision_(precision), point_(point), evaluation_(evaluation) {}

  void with_micro_batches(int m) {
    const Cluster& cluster = space_.request().problem.cluster;
    const int64_t micro_batch = std::max<int64_t>(1, (point_.batch_size + m - 1) / m);
    Profile profile =
        profile_at(model_, {cluster.devices[static_cast<size_t>(cluster.hosts.front().device)].name, precision_, 1, micro_batch});
    const Link& link = cluster.inside.of(Exchange::kHandOver);
    profile.link_latency_seconds = link.latency_seconds, profile.link_bytes_per_second = link.bytes_per_second;
    place_on_branches(profile, m);
    replicate_stages(profile, m);
  }

 private:
  Candidate plain(int m) const {
    Candidate out;
    out.layout.microbatches = m, out.layout.accumulate = 1;
    out.layout.precision = precision_, out.layout.shares = "equal";
    out.recompute.assign(model_.layers.size(), false);
    return out;
  }

  void consider(const Candidate& candidate) {
    if (!refusal_of(candidate.layout)) evaluation_.consider(candidate, point_);
  }

  void place_on_branches(const Profile& profile, int m) {
    std::set<std::vector<int>> met;
    for (int workers = 2; workers <= space_.most_workers(); ++workers) {
      const BranchPlacement placement = place_branches(profile, workers);
      const int used = 1 + *std::max_element(placement.rank.begin(), placement.rank.end());
      if (used < 2 || !met.insert(placement.rank).second) continue;
      Candidate candidate = plain(m);
      candidate.layout.pp = used;
      candidate.stages = {stage_of_layers(placement.first_layer, model_.layers.size()), placement.rank};
      consider(candidate);
      candidate.layout.dp = space_.most_workers() / used;
      candidate.layout.microbatches = std::max(1, m / candidate.layout.dp);
      if (candidate.layout.dp > 1 && int64_t{candidate.layout.dp} * candidate.layout.microbatches <= point_.batch_size) consider(candidate);
    }
  }

  void replicate_stages(const Profile& profile, int m) {
    const PlanProblem& asked = space_.request().problem;
    StageProblem problem;
    const double copies = 3 + asked.optimizer_arrays;  // Weights, gradients, buckets and state, roughly.
    for (const LayerProfile& layer : profile.layers)
      problem.layers.push_back({layer.forward_seconds, layer.backward_input_seconds + layer.backward_weight_seconds,
                                copies * static_cast<double>(layer.weight_bytes), static_cast<double>(layer.stash_bytes),
                                profile.transfer_seconds(layer.output_bytes)});
    for (const auto& [from, to] : profile.edges)
      if (from >= 0) problem.edges.emplace_back(from, to);
    problem.num_devices = space_.most_workers();
    problem.memory_bytes = std::numeric_limits<double>::infinity();
    for (const DeviceKind& device : asked.cluster.devices)
      problem.memory_bytes = std::min(problem.memory_bytes,
                                      static_cast<double>(device.memory_bytes - device.reserved_bytes) / (1 + device.allocator_overhead));
    if (asked.memory_limit_bytes > 0) problem.memory_bytes = std::min(problem.memory_bytes, static_cast<double>(asked.memory_limit_bytes));
    problem.num_micro_batches = m;
    const auto answer = search_stages(problem, kStageSearchSeconds);
    if (!answer || answer->stages.size() < 2) return;
    Candidate candidate = plain(m);
    candidate.layout.pp = static_cast<int>(answer->stages.size());
    candidate.stages.stage_of.assign(model_.layers.size(), 0);
    for (size_t stage = 0; stage < answer->stages.size(); ++stage) {
      LayoutStage named{{}, static_cast<int>(stage), answer->stages[stage].num_devices};
      std::vector<int> layers = answer->stages[stage].layers;
      std::sort(layers.begin(), layers.end());
      for (const int layer : layers) {
        named.layers.push_back(model_.layers[static_cast<size_t>(layer)].name);
        candidate.stages.stage_of[static_cast<size_t>(layer)] = static_cast<int>(stage);
      }
      candidate.layout.stages.push_back(std::move(named));
      candidate.stages.worker_of_stage.push_back(static_cast<int>(stage));
    }
    if (!candidate.layout.is_even()) consider(candidate);
  }

  const SearchSpace& space_;
  const ModelProfile& model_;
  const std::string& precision_;
  const GoalSteps& point_;
  CutForecasts& evaluation_;
};

}  // namespace

void forecast_branches_and_replicas(const SearchSpace& space, const std::string& precision, const GoalSteps& point,
                                    CutForecasts& evaluation, const std::function<bool()>& is_over) {
  if (space.most_workers() < 2 || space.most_workers() > kMostWorkers || space.num_layers() > kMostLayers) return;
  for (const auto& [key, value] : space.request().fixed)
    if (key != "precision" && key != "accumulate") return;
  if (space.is_given("accumulate") && space.given().accumulate > 1) return;
  BranchPlans search(space, precision, point, evaluation);
  if (space.request().problem.profile.sample_granularity > 1) return;
  for (int m = 1; m <= std::min<int64_t>(kMostMicroBatches, point.batch_size) && !is_over(); m *= 2) search.with_micro_batches(m);
}

}  // namespace cohort
