// Forecasts of one layout. By search:
//
//   1. Cuts regardless of memory: the threshold cuts for the flush and for the slowest stage, equal seconds, equal layers. Where the first
//      fits no recompute is needed.
//   2. Otherwise the cut with recompute under the limits of memory, by an estimate of the stages' bytes. The error of the estimate against
//      the forecast, per worker, corrects the limits of the next of kMostRounds rounds.
//   3. As the last resort the cut with the least memory.
//
// By trying all: all cuts into runs with all sets of recomputed layers, up to kMostWork simulated actions. Recompute only adds time where
// the order of a schedule does not depend on costs, so a cut that fits needs no sets; zb-h1 and zb-v order by costs, so there all sets are
// tried, or the result is not exact.

#include "cohort/plan/search/cut_forecasts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "cohort/base/fail.h"
#include "cohort/base/statistics.h"
#include "cohort/base/text/text.h"
#include "cohort/plan/cut/split.h"

namespace cohort {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr int kMostRounds = 5, kMostSetLayers = 10;
constexpr double kMostCuts = 400, kMostWork = 250'000, kMostSplitWork = 4000;

size_t at(int i) { return static_cast<size_t>(i); }

/// The most (stage, micro-batch) pairs that a worker keeps, as documented by the generators in schedule/.
double peak_pairs(const std::string& schedule, int p, int m, int chunks, int worker) {
  const double all = static_cast<double>(m) * chunks;
  if (schedule == "1f1b" || chunks == 1)
    return schedule == "gpipe" || schedule.starts_with("bfs") ? m : schedule == "zb-h1" ? std::min(m, p) : std::min(m, p - worker);
  if (schedule.starts_with("bfs")) return all;
  if (schedule == "zb-v") return std::min<double>(all, 2.0 * p);
  const int group = m < p ? m : (m + m / p - 1) / (m / p);
  return std::min<double>(all, 2.0 * (p - 1 - worker) + static_cast<double>(chunks - 1) * group + 1);
}

int worker_of(const std::string& schedule, int p, int stage) { return schedule == "zb-v" ? std::min(stage, 2 * p - 1 - stage) : stage % p; }

}  // namespace

struct CutForecasts::Setting {
  Combination combination;
  Candidate candidate;
  GoalSteps point;
  std::vector<int> worker_of_stage;
  CutProblem cut;
  std::vector<double> worker_limit, worker_offset;  ///< In bytes; the offset is the error of the estimate.

  void set_limits() {
    std::vector<double> count(worker_limit.size(), 0);
    for (const int worker : worker_of_stage) ++count[at(worker)];
    for (size_t stage = 0; stage < worker_of_stage.size(); ++stage) {
      const size_t worker = at(worker_of_stage[stage]);
      cut.limit[stage] = std::max(0.0, worker_limit[worker] - worker_offset[worker]) / count[worker];
    }
  }
};

double CutForecasts::work_of(const Combination& combination) const {
  const double pairs = static_cast<double>(combination.micro_batches) * combination.degrees.pp * space_.stages_per_worker(combination);
  const bool lists = combination.degrees.pp > 1 && space_.schedule(combination).starts_with("zb");
  return 20 + space_.num_layers() + (combination.degrees.pp > 1 ? kActionsOfAPair * pairs * (lists ? 15 : 1) : 0);
}

CutForecasts::Setting CutForecasts::setting_of(const Combination& combination) {
  const PlanProblem& problem = space_.request().problem;
  const Degrees& degrees = combination.degrees;
  const std::string& schedule = space_.schedule(combination);
  const std::string& precision = space_.precision(degrees);
  Setting out{.combination = combination, .candidate = space_.candidate(combination), .point = space_.batches()[at(degrees.batch)]};
  const int p = degrees.pp, chunks = space_.stages_per_worker(combination), n = space_.num_layers();
  const bool mixed = space_.kinds(degrees.num_ranks()).size() > 1;
  std::vector<const LayerCosts*> of_worker;
  for (int worker = 0; worker < p; ++worker) {
    const LayerCosts* slowest = nullptr;
    double limit = kInfinite;
    for (int replica = 0; replica < (mixed ? degrees.dp * degrees.tp : 1); ++replica) {
      const bool pipes_inside = out.candidate.layout.order.starts_with("dp");
      const int data = replica / degrees.tp, place = pipes_inside ? data * p + worker : worker * degrees.dp + data;
      const int kind = problem.cluster.device_of_rank(place * degrees.tp + replica % degrees.tp);
      const DeviceKind& device = problem.cluster.devices[at(kind)];
      const LayerCosts& costs = costs_.on_device(precision, degrees.tp, combination.micro_batch, kind);
      if (!slowest || costs.seconds() > slowest->seconds()) slowest = &costs;
      auto bytes = static_cast<double>(device.memory_bytes);
      if (problem.memory_limit_bytes > 0) bytes = std::min(bytes, static_cast<double>(problem.memory_limit_bytes));
      limit = std::min(limit, (bytes - static_cast<double>(device.reserved_bytes)) / (1 + device.allocator_overhead));
    }
    of_worker.push_back(slowest);
    out.worker_limit.push_back(std::max(0.0, limit));
  }
  out.worker_offset.assign(at(p), 0);
  CutProblem& cut = out.cut;
  for (int stage = 0; stage < p * chunks; ++stage) {
    const int worker = p > 1 ? worker_of(schedule, p, stage) : 0;
    out.worker_of_stage.push_back(worker);
    cut.costs.push_back(of_worker[at(worker)]);
    cut.kept.push_back(p > 1 ? peak_pairs(schedule, p, combination.micro_batches, chunks, worker) / chunks : 1);
    cut.limit.push_back(kInfinite);
  }
  cut.micro_batches = combination.micro_batches;
  cut.fixed_before.assign(at(n) + 1, 0);
  cut.received.assign(at(n) + 1, 0);
  const double dp = degrees.dp;
  for (int i = 0; i < n; ++i) {
    const ProfiledLayer& layer = problem.profile.layers[at(i)];
    const int parts = layer.tensor_parts % degrees.tp == 0 ? degrees.tp : 1;
    const double trained = 4.0 * static_cast<double>(layer.num_trained) / parts,
                 frozen = 4.0 * static_cast<double>(layer.num_frozen) / parts;
    const double weights = trained / (combination.zero == 3 ? dp : 1) + frozen;
    const double gradients = trained / (combination.zero >= 2 ? dp : 1);
    const double optimizer = trained * problem.optimizer_arrays / (combination.zero >= 1 ? dp : 1);
    cut.fixed_before[at(i) + 1] = cut.fixed_before[at(i)] + weights + gradients + optimizer + static_cast<double>(layer.buffer_bytes);
    const LayerCosts& costs = *of_worker.front();
    cut.kept_output.push_back(
        layer.output_kept == OutputKept::kByReaders ? static_cast<double>(std::min(costs.stash[at(i)], costs.output[at(i)])) : 0);
  }
  // A value is received by a stage that begins between its layer and its last reader.
  const std::vector<int> last_reader = last_readers(problem.profile.edges, at(n));
  std::vector<double> change(at(n) + 2, 0);
  for (int i = 0; i < n; ++i)
    if (last_reader[at(i)] > i) {
      change[at(i) + 1] += static_cast<double>(of_worker.front()->output[at(i)]);
      change[at(last_reader[at(i)]) + 1] -= static_cast<double>(of_worker.front()->output[at(i)]);
    }
  for (int i = 1; i <= n; ++i) cut.received[at(i)] = cut.received[at(i) - 1] + change[at(i)];
  if (space_.is_given("recompute") && space_.given().recompute != "auto")
    cut.given_recompute = recomputed_layers(space_.given().recompute, at(n));
  return out;
}

std::optional<RankedPlan> CutForecasts::forecast(const Candidate& candidate, const GoalSteps& point) {
  if (is_over_()) return std::nullopt;
  problem_.global_batch = point.batch_size;
  RankedPlan plan{.candidate = candidate, .global_batch = point.batch_size, .forecast = forecast_step(problem_, candidate)};
  const StepForecast& its = plan.forecast;
  switch (space_.request().objective) {
    case Objective::kStepTime:
      plan.objective = its.step_seconds, plan.low = its.low_seconds, plan.high = its.high_seconds;
      break;
    case Objective::kThroughput: {
      const auto samples = static_cast<double>(point.batch_size);
      plan.objective = its.step_seconds / samples, plan.low = its.low_seconds / samples, plan.high = its.high_seconds / samples;
      break;
    }
    case Objective::kMemory:
      plan.objective = plan.low = plan.high = static_cast<double>(its.peak_memory_bytes());
      break;
    case Objective::kTimeToGoal: {
      const Estimate all = product({point.steps, point.low, point.high}, {its.step_seconds, its.low_seconds, its.high_seconds});
      plan.objective = all.value, plan.low = all.low, plan.high = all.high;
      break;
    }
  }
  if (!least_memory_ || its.peak_memory_bytes() < least_memory_->forecast.peak_memory_bytes()) least_memory_ = plan;
  return plan;
}

std::optional<RankedPlan> CutForecasts::forecast_cut(const Setting& setting, const Cut& cut) {
  Candidate candidate = setting.candidate;
  candidate.recompute = cut.recompute;
  candidate.layout.recompute = recompute_text(cut.recompute);
  if (setting.combination.degrees.pp > 1)
    candidate.stages = {stage_of_layers(cut.first_layer, at(space_.num_layers())), setting.worker_of_stage};
  work_ += work_of(setting.combination);
  return forecast(candidate, setting.point);
}

bool CutForecasts::keep(const std::optional<RankedPlan>& plan, double& best) {
  if (!plan || !plan->forecast.fits) return false;
  best = std::min(best, plan->objective);
  pool_.add(*plan);
  return true;
}

void CutForecasts::consider(const Candidate& candidate, const GoalSteps& point) {
  double best = kInfinite;
  work_ += 4.0 * candidate.layout.microbatches * candidate.layout.pp;
  keep(forecast(candidate, point), best);
}

/// Corrects the limits by the error of the estimated bytes against a forecast.
void CutForecasts::adapt(Setting& setting, const Cut& cut, const RankedPlan& plan) const {
  std::vector<double> estimate(setting.worker_limit.size(), 0);
  CutProblem free = setting.cut;
  free.given_recompute = cut.recompute;
  std::fill(free.limit.begin(), free.limit.end(), kInfinite);
  for (int stage = 0; stage < free.num_stages(); ++stage) {
    const int end = stage + 1 < free.num_stages() ? cut.first_layer[at(stage) + 1] : free.num_layers();
    estimate[at(setting.worker_of_stage[at(stage)])] += choose_stage(free, stage, cut.first_layer[at(stage)], end, false).bytes;
  }
  for (size_t worker = 0; worker < estimate.size() && worker < plan.forecast.workers.size(); ++worker) {
    const WorkerForecast& its = plan.forecast.workers[worker];
    setting.worker_limit[worker] = static_cast<double>(its.memory_limit);
    setting.worker_offset[worker] = static_cast<double>(its.memory.total()) - estimate[worker];
  }
  setting.set_limits();
}

CutForecasts::Outcome CutForecasts::by_search(const Combination& combination) {
  Setting setting = setting_of(combination);
  Outcome out{.best = kInfinite};
  CutProblem& problem = setting.cut;
  const int stages = problem.num_stages(), n = space_.num_layers();
  std::vector<std::vector<int>> cuts;
  const auto propose = [&](const std::vector<int>& first_layer) {
    if (std::find(cuts.begin(), cuts.end(), first_layer) == cuts.end()) cuts.push_back(first_layer);
  };
  if (has_given_cut(stages)) {
    propose(given_cut(stages));
    if (cuts.front().empty()) return out;
  } else {
    const int chunks = space_.stages_per_worker(combination);
    for (const bool has_flush : {true, false}) {
      problem.has_flush = has_flush;
      if (stages > 1 && (chunks == 1 || !has_flush))
        if (const auto cut = best_cut(problem)) propose(cut->first_layer);
    }
    propose(equal_seconds(*problem.costs.front(), stages));
    propose(even_cuts(n, stages));
  }
  problem.has_flush = true;
  const bool is_free = cuts.size() > 1 || stages == 1;
  std::optional<Cut> first;
  std::optional<RankedPlan> first_plan;
  for (const std::vector<int>& first_layer : cuts) {
    const auto cut = with_recompute(problem, first_layer);
    if (!cut) continue;
    const auto plan = forecast_cut(setting, *cut);
    if (!plan) return out;
    const bool fits = keep(plan, out.best);
    if (!first) first = cut, first_plan = plan;
    if (fits && stages == 1)
      out.is_exact = problem.given_recompute.empty() ? plan->candidate.recompute == std::vector<bool>(at(n), false) : true;
  }
  if (!first || first_plan->forecast.fits) return out;
  // Memory is the limit.
  std::optional<Cut> cut = first;
  std::optional<RankedPlan> plan = first_plan;
  for (int round = 0; round < kMostRounds; ++round) {
    adapt(setting, *cut, *plan);
    std::optional<Cut> next = is_free ? best_cut(setting.cut) : with_recompute(setting.cut, cuts.front());
    if (!next || (next->first_layer == cut->first_layer && next->recompute == cut->recompute)) break;
    cut = std::move(next);
    plan = forecast_cut(setting, *cut);
    if (!plan) return out;
    keep(plan, out.best);
  }
  if (std::isinf(out.best)) by_least_memory(setting, out.best);
  return out;
}

void CutForecasts::by_memory(const Combination& combination) {
  Setting setting = setting_of(combination);
  double best = kInfinite;
  by_least_memory(setting, best);
}

/// The cut whose largest stage has the fewest bytes: bisection on one limit for all, then rounds as above.
void CutForecasts::by_least_memory(Setting& setting, double& best) {
  CutProblem& problem = setting.cut;
  problem.only_memory = true;
  const int stages = problem.num_stages();
  const bool is_cut_given = has_given_cut(stages);
  const std::vector<int> given = is_cut_given ? given_cut(stages) : std::vector<int>{};
  if (is_cut_given && given.empty()) return;
  for (int round = 0; round < 3; ++round) {
    double low = 0, high = 0;
    for (int stage = 0; stage < stages; ++stage)
      high = std::max(high, problem.fixed_before.back() +
                                problem.kept[at(stage)] * static_cast<double>(problem.costs[at(stage)]->stash_before.back()) +
                                std::max(0.0, setting.worker_offset[at(setting.worker_of_stage[at(stage)])]));
    high = 4 * high + 1;
    std::optional<Cut> least;
    for (int step = 0; step < 40 && high - low > 0.5; ++step) {
      const double middle = step == 0 ? high : 0.5 * (low + high);
      std::fill(setting.worker_limit.begin(), setting.worker_limit.end(), middle);
      setting.set_limits();
      auto cut = is_cut_given ? with_recompute(problem, given) : best_cut(problem);
      if (cut) high = middle, least = std::move(cut);
      else if (step == 0) break;
      else low = middle;
    }
    if (!least) return;
    const auto plan = forecast_cut(setting, *least);
    if (!plan) return;
    keep(plan, best);
    adapt(setting, *least, *plan);
  }
}

bool CutForecasts::has_given_cut(int stages) const { return space_.is_given("split") && space_.given().split != "auto" && stages > 1; }

std::vector<int> CutForecasts::given_cut(int stages) const {
  if (space_.given().split == "even") return even_cuts(space_.num_layers(), stages);
  std::vector<int> out = {0};
  for (const std::string& part : split(space_.given().split, '/')) out.push_back(static_cast<int>(parse_integer(part).value_or(-1)));
  if (static_cast<int>(out.size()) != stages || out.back() >= space_.num_layers()) return {};
  return out;
}

std::optional<CutForecasts::Outcome> CutForecasts::by_trying_all(const Combination& combination) {
  const int n = space_.num_layers(), stages = combination.degrees.pp * space_.stages_per_worker(combination);
  const double cuts = num_cuts(n, stages);
  if (has_given_cut(stages) || cuts > kMostCuts || work_of(combination) * cuts > kMostWork) return std::nullopt;
  const Setting setting = setting_of(combination);
  const std::vector<bool>& given = setting.cut.given_recompute;
  const bool is_list = combination.degrees.pp > 1 && space_.schedule(combination).starts_with("zb");
  const double sets = given.empty() ? std::pow(2.0, n) : 1;
  Outcome out{.is_exact = true, .best = kInfinite};
  double work = work_of(combination) * cuts;
  Cut cut{.recompute = given.empty() ? std::vector<bool>(at(n), false) : given};
  for (int i = 0; i < stages; ++i) cut.first_layer.push_back(i);
  do {
    cut.recompute = given.empty() ? std::vector<bool>(at(n), false) : given;
    const auto plain = forecast_cut(setting, cut);
    if (!plain) return std::nullopt;
    const bool fits = keep(plain, out.best);
    // Recompute only adds time, so this cut cannot give a better plan than the best.
    const bool is_lost = space_.request().objective != Objective::kMemory && plain->objective >= pool_.best_objective();
    const bool must_try = given.empty() && (is_list || (!fits && !is_lost) || space_.request().objective == Objective::kMemory);
    if (must_try) {
      work += work_of(combination) * sets;
      if (n > kMostSetLayers || work > kMostWork) {
        out.is_exact = false;
      } else {
        for (uint32_t set = 1; set < uint32_t{1} << n; ++set) {
          for (int i = 0; i < n; ++i) cut.recompute[at(i)] = set >> i & 1;
          const auto plan = forecast_cut(setting, cut);
          if (!plan) return std::nullopt;
          keep(plan, out.best);
        }
      }
    }
  } while (next_cut(cut.first_layer, n));
  return out;
}

void CutForecasts::improve(const RankedPlan& start, const Combination& combination, double most_work) {
  Setting setting = setting_of(combination);
  const int n = space_.num_layers(), stages = setting.cut.num_stages();
  const double end = work_ + most_work;
  const bool is_cut_free = stages > 1 && !has_given_cut(stages);
  Cut cut{.recompute = start.candidate.recompute};
  for (int layer = 0; layer < n && stages > 1; ++layer)
    if (layer == 0 || start.candidate.stages.stage_of[at(layer)] != start.candidate.stages.stage_of[at(layer) - 1])
      cut.first_layer.push_back(layer);
  double best = start.objective;
  const auto try_one = [&](const Cut& other) {
    const auto plan = forecast_cut(setting, other);
    if (!plan || plan->objective >= best || !keep(plan, best)) return false;
    cut = other;
    return true;
  };
  for (bool moved = true; moved && work_ < end;) {
    moved = false;
    for (int stage = 1; is_cut_free && stage < stages && work_ < end; ++stage)
      for (const int step : {-1, 1, -2, 2}) {
        Cut other = cut;
        const int first = other.first_layer[at(stage)] + step;
        const int next = stage + 1 < stages ? other.first_layer[at(stage) + 1] : n;
        if (first <= other.first_layer[at(stage) - 1] || first >= next || work_ >= end) continue;
        other.first_layer[at(stage)] = first;
        moved |= try_one(other);
      }
    const auto recompute = [&](int layer, int instead) {
      Cut other = cut;
      if (instead < n) other.recompute[at(instead)] = true;
      other.recompute[at(layer)] = false;
      moved |= try_one(other);
    };
    if (!setting.cut.given_recompute.empty()) continue;
    for (int layer = 0; layer < n && work_ < end; ++layer)
      if (cut.recompute[at(layer)]) recompute(layer, n);
    for (int layer = 0; layer < n; ++layer)  // Expensive: only where nothing else helps.
      for (int instead = 0; instead < n && !moved && cut.recompute[at(layer)] && work_ < end; ++instead)
        if (!cut.recompute[at(instead)]) recompute(layer, instead);
  }
}

}  // namespace cohort
