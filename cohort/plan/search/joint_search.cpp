// The joint search: every layout has a bound, few have a forecast.
//
//   1. Bound all degrees (precision, tp, pp, dp, batch) by their area (combination_bound.h). Forecast data parallelism over all devices, an
//      equal pipeline and the most promising layouts of every branch (precision, tp, pp); then move to better neighbours.
//   2. Expand degrees whose bound is below the best into layouts (search_space.h). Layouts whose bound is not below the best are excluded,
//      the others are pending, ordered by the estimated time of an even cut. The most promising are forecast at intervals.
//   3. Forecast pending layouts in that order while their bound is below the best: all cuts with all sets of recomputed layers where these
//      are few, else the cuts of cut_forecasts.h.
//   4. Improve the best few plans by moving boundaries. Compression, where allowed, is tried on the best plans, mild before strong, and
//      taken where it gains kMinCompressionGain.
//   5. Forecast layouts with little memory, for the front and for problems where nothing else fits.
//   6. For small problems try plans outside the class: parallel branches, and stages with different numbers of replicas (branch_plans.cpp).
//
// The lower bound is the least of the best plan and the bounds of all layouts that were neither tried completely nor excluded; it is proved
// for the class of joint_search.md. Work is counted in simulated actions, so that the answer does not depend on the speed of the machine;
// time only cuts it short. Cost: degrees log degrees + layouts + kMaxWork actions.

#include "cohort/plan/search/joint_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/plan/search/combination_bound.h"
#include "cohort/plan/search/cut_forecasts.h"
#include "cohort/plan/search/search_space.h"

namespace cohort {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
// Work is counted in simulated actions. A search of kMaxWork takes some seconds of one core.
constexpr double kMaxWork = 2.5e7, kMaxImproveWork = 4e5, kMaxMemoryWork = 4e5;
constexpr double kMinCompressionGain = 0.05;  // Rounded gradients must save this share of the objective.
constexpr double kProgressSeconds = 0.2;
constexpr double kMaxBoundingShare = 0.3;  // Share of the time to bound the degrees; the rest is for forecasts.
// A layout whose estimate is further above the best plan is not forecast: estimates leave out details of memory, but err by less.
constexpr double kMaxEstimateFactor = 1.15;
constexpr int64_t kMaxLayouts = 300'000;                             // Bounds of as many take seconds.
constexpr size_t kMaxPending = 20'000;                               // Beyond, kMaxEstimateFactor is applied at once.
constexpr size_t kLayoutsPerRound = 4'000, kForecastsPerRound = 12;  // Early forecasts lower the best and exclude layouts.
constexpr size_t kMemoryForecasts = 24, kMaxMemoryForecasts = 300;   // For the front, and where nothing fits yet.
constexpr size_t kMaxMemoryObjectiveForecasts = 3000;                // Where memory is the objective.
constexpr int kNumImprovedPlans = 5, kMaxDescentSteps = 12;
constexpr int kMaxDensePipeline = 64;  // Longer pipelines are sampled before the search: is_round().

/// Near the golden section of n, so that its multiples are spread evenly; it meets all of 0 .. n - 1.
size_t coprime_stride(size_t n) {
  auto stride = std::max<size_t>(1, static_cast<size_t>(0.618 * static_cast<double>(n)));
  while (std::gcd(stride, n) != 1) ++stride;
  return stride;
}

struct SearchCounts {
  int64_t layouts = 0, refused = 0, done = 0;
};

/// A layout that is neither excluded by its bound nor tried completely yet.
struct PendingLayout {
  Combination combination;
  TimeBound bound;  ///< In units of the objective.
  double estimate = 0;
  bool is_done = false;
};

class JointSearch {
 public:
  JointSearch(const SearchRequest& request, const std::function<void(const SearchProgress&)>& progress, const std::atomic<bool>* stop)
      : request_(request),
        progress_(progress),
        stop_(stop),
        start_(steady_seconds()),
        space_(request),
        costs_(request.problem),
        bounds_(space_, costs_),
        pool_(request.objective),
        forecasts_(space_, costs_, pool_, [this] { return is_over(); }) {}

  PlanAnswer run() {
    find_degrees();
    if (request_.objective == Objective::kMemory) search_memory(kMaxMemoryObjectiveForecasts, true);
    else search_time();
    if (pool_.empty() && request_.objective != Objective::kMemory) search_memory(kMaxMemoryForecasts, false);
    if (pool_.empty()) fail_infeasible();
    return answer();
  }

  /// The plan with the least memory, whether it fits or not.
  std::optional<RankedPlan> least_memory() {
    find_degrees();
    search_memory(kMaxMemoryForecasts, false);
    return forecasts_.least_memory();
  }

 private:
  bool is_over() {
    if (is_cut_short_) return true;
    const double now = steady_seconds();
    if (progress_ && now - last_progress_ >= kProgressSeconds) {
      last_progress_ = now;
      progress_({pool_.best_objective(), std::min(degrees_.empty() ? 0 : degrees_.front().second.seconds, pool_.best_objective()),
                 now - start_, counts_.layouts, counts_.done});
    }
    return is_cut_short_ = now - start_ > request_.search_seconds || (stop_ && stop_->load());
  }

  /// Converts seconds of a step into units of the objective.
  double scale(int batch) const {
    const GoalSteps& point = space_.batches()[static_cast<size_t>(batch)];
    if (request_.objective == Objective::kThroughput) return 1 / static_cast<double>(point.batch_size);
    return request_.objective == Objective::kTimeToGoal ? point.steps : 1;
  }

  /// Bounds all degrees, in strides: what is bounded before time is up is a sample of all.
  void find_degrees() {
    const std::vector<Degrees> all = space_.all_degrees();
    if (all.empty()) fail(ErrorCode::kBadInput, "plan: ", space_.why_no_degrees());
    const size_t stride = coprime_stride(all.size());
    for (size_t i = 0, at = 0; i < all.size(); ++i, at = (at + stride) % all.size()) {
      if (i % 64 == 63 && (is_over() || steady_seconds() - start_ > kMaxBoundingShare * request_.search_seconds)) {
        record_unproved({0, "area"});
        break;
      }
      TimeBound bound = bounds_.of_degrees(all[at]);
      bound.seconds *= scale(all[at].batch);
      degrees_.push_back({all[at], bound});
    }
    const auto key = [](const std::pair<Degrees, TimeBound>& one) {  // The simpler of equals comes first.
      const Degrees& its = one.first;
      return std::tuple(one.second.seconds, its.precision, its.tp, its.pp, its.batch, its.dp);
    };
    std::sort(degrees_.begin(), degrees_.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  }

  /// Appends the layouts of one choice of degrees that may be better than the best. `counts`: counts_, or a copy that is dropped where the
  /// same degrees are expanded again later.
  void expand(const Degrees& degrees, std::vector<PendingLayout>& out, SearchCounts& counts) {
    std::vector<Combination> found;
    space_.add_combinations(degrees, found, counts.refused);
    counts.layouts += static_cast<int64_t>(found.size());
    for (const Combination& combination : found) {
      costs_.trim();
      TimeBound bound = bounds_.of_combination(combination, false);
      bound.seconds *= scale(degrees.batch);
      if (bound.seconds >= pool_.best_objective()) ++counts.done;  // Excluded: the best only falls.
      else if (const double work = forecasts_.work_of(combination); work > kMostForecastWork) record_unproved(combination, bound);
      else if (is_over()) record_unproved(bound);
      // Cheaper forecasts come first among equal estimates.
      else
        out.push_back({combination, bound, bounds_.estimate(combination) * scale(degrees.batch) * (1 + 0.02 * std::log2(1 + work / 1e4))});
    }
  }

  /// Forecasts the likely cuts alone, for a good plan early. It proves nothing unless there is one cut.
  void forecast_likely_cuts(PendingLayout& pending) {
    const Key key = key_of(pending.combination);
    if (pending.is_done || tried_all_.contains(key) || likely_outcomes_.contains(key)) return;
    pending.bound = with_flush(pending.combination);
    if (pending.bound.seconds >= pool_.best_objective()) return;
    const CutForecasts::Outcome outcome = forecasts_.by_search(pending.combination);
    if (!is_cut_short_) likely_outcomes_.emplace(key, outcome);
  }

  /// Forecasts all cuts where these are few, else the likely ones; then the layout is done.
  void forecast_all_cuts(PendingLayout& pending) {
    if (pending.is_done) return;
    if (!tried_all_.insert(key_of(pending.combination)).second) {  // A neighbour of the best was tried already.
      pending.is_done = true;
      return;
    }
    pending.bound = with_flush(pending.combination);
    if (pending.bound.seconds >= pool_.best_objective()) {
      pending.is_done = true;
      ++counts_.done;
      return;
    }
    auto outcome = forecasts_.by_trying_all(pending.combination);
    if (!outcome && pending.estimate > kMaxEstimateFactor * pool_.best_objective()) {
      outcome = CutForecasts::Outcome{false, kInfinite};
    } else if (!outcome || !outcome->is_exact) {
      const auto found = likely_outcomes_.find(key_of(pending.combination));
      const CutForecasts::Outcome searched = found != likely_outcomes_.end() ? found->second : forecasts_.by_search(pending.combination);
      outcome = {searched.is_exact, outcome ? std::min(outcome->best, searched.best) : searched.best};
    }
    if (is_cut_short_) return;  // An unfinished layout proves nothing.
    pending.is_done = true;
    ++counts_.done;
    // Compression was not tried on all cuts; bounds count no exchange that it could shorten.
    const bool may_round = request_.may_compress && pending.combination.degrees.dp > 1;
    if (!outcome->is_exact || may_round) record_unproved(pending.bound);
  }

  TimeBound with_flush(const Combination& combination) {
    TimeBound bound = bounds_.of_combination(combination, true);
    bound.seconds *= scale(combination.degrees.batch);
    return bound;
  }

  /// The bound of a layout that was neither excluded nor tried completely: no plan is proved to be below the least of them.
  void record_unproved(const TimeBound& bound) {
    if (bound.seconds < unproved_.seconds) unproved_ = bound;
  }
  /// `cheap`: the bound without the flush, which is computed only where it decides.
  void record_unproved(const Combination& combination, const TimeBound& cheap) {
    if (cheap.seconds < unproved_.seconds) record_unproved(is_cut_short_ ? cheap : with_flush(combination));
  }

  using Key = std::array<int64_t, 12>;
  static Key key_of(const Combination& one) {
    return {one.degrees.precision, one.degrees.tp, one.degrees.pp, one.degrees.dp,    one.degrees.batch, one.zero,
            one.schedule,          one.order,      one.compress,   one.micro_batches, one.accumulate,    one.has_shares ? 1 : 0};
  }

  static bool is_earlier(const PendingLayout& a, const PendingLayout& b) { return a.estimate < b.estimate; }

  /// Forecasts data parallelism over all devices, and an equal pipeline.
  void forecast_plain_layouts() {
    const auto widest = [&](auto&& degree_of, auto&& is_plain) {
      const Degrees* best = nullptr;
      for (const auto& [degrees, bound] : degrees_)
        if (is_plain(degrees) && (!best || degree_of(degrees) > degree_of(*best))) best = &degrees;
      if (!best) return;
      std::vector<PendingLayout> plain;
      expand(*best, plain, counts_);
      counts_.layouts -= static_cast<int64_t>(plain.size());  // The main loop counts them.
      std::stable_sort(plain.begin(), plain.end(), is_earlier);
      for (size_t i = 0; i < std::min<size_t>(plain.size(), 4) && !is_over(); ++i)
        if (forecasts_.work_of(plain[i].combination) < kMaxWork / 100) forecasts_.by_search(plain[i].combination);
    };
    widest([](const Degrees& d) { return d.dp; }, [](const Degrees& d) { return d.pp == 1 && d.tp == 1; });
    widest([](const Degrees& d) { return d.pp; }, [](const Degrees& d) { return d.dp == 1 && d.tp == 1 && d.pp > 1; });
  }

  /// Long pipelines of similar length cost about the same: those with 2^a or 3 * 2^a workers represent all.
  static bool is_round(int workers) {
    const auto is_power = [](int n) { return (n & (n - 1)) == 0; };
    return is_power(workers) || (workers % 3 == 0 && is_power(workers / 3));
  }

  /// For each (precision, tp, pp, batch) the most promising degrees: the best by estimate for every ZeRO stage and every schedule, so that
  /// an error of the estimate excludes none.
  void forecast_every_branch() {
    std::map<std::array<int, 4>, std::pair<double, const Degrees*>> branches;
    for (const auto& [degrees, bound] : degrees_) {
      if (is_over()) return;
      if (degrees.pp > kMaxDensePipeline && !is_round(degrees.pp)) continue;
      costs_.trim();
      const double estimate = bounds_.estimate(degrees) * scale(degrees.batch);
      const auto [at, is_new] = branches.try_emplace({degrees.precision, degrees.tp, degrees.pp, degrees.batch}, estimate, &degrees);
      if (!is_new && estimate < at->second.first) at->second = {estimate, &degrees};
    }
    std::vector<std::pair<double, const Degrees*>> order;
    for (const auto& [key, branch] : branches) order.push_back(branch);
    std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    double last = -1;
    for (const auto& [estimate, degrees] : order) {
      if (is_over() || forecasts_.work() > kMaxWork / 2) return;
      if (estimate == last) continue;  // Usually the other half precision.
      last = estimate;
      std::vector<PendingLayout> found;
      SearchCounts uncounted;
      expand(*degrees, found, uncounted);
      std::stable_sort(found.begin(), found.end(), is_earlier);
      std::set<int> zeros, schedules;
      for (PendingLayout& one : found) {
        const bool is_new = zeros.insert(one.combination.zero).second, is_new_too = schedules.insert(one.combination.schedule).second;
        if ((is_new || is_new_too) && !is_over()) forecast_likely_cuts(one);
      }
    }
  }

  /// Whether `one` differs from `from` in one choice: two degrees by a factor of two, ZeRO, schedule, order, or micro-batches.
  static bool is_neighbour(const Combination& one, const Combination& from) {
    const auto near = [](double a, double b) { return a <= 2 * b && b <= 2 * a; };
    const Degrees &a = one.degrees, &b = from.degrees;
    const int degrees = (a.tp != b.tp) + (a.pp != b.pp) + (a.dp != b.dp);
    if (a.precision != b.precision || a.batch != b.batch || degrees > 2) return false;
    if (degrees > 0)
      return near(a.tp, b.tp) && near(a.pp, b.pp) && near(a.dp, b.dp) && one.schedule == from.schedule && one.zero == from.zero &&
             one.order == from.order && near(static_cast<double>(one.micro_batch), static_cast<double>(from.micro_batch));
    return (one.zero != from.zero) + (one.schedule != from.schedule) + (one.order != from.order) +
               (one.micro_batches != from.micro_batches || one.accumulate != from.accumulate) ==
           1;
  }

  /// Moves from the best plan to better neighbours until there are none.
  void descend() {
    double before = kInfinite;
    for (int round = 0; round < kMaxDescentSteps && !pool_.empty() && pool_.best_objective() < before && !is_over(); ++round) {
      before = pool_.best_objective();
      const Combination from = space_.combination_of(pool_.best());
      std::vector<PendingLayout> near;
      SearchCounts uncounted;
      for (const auto& [degrees, bound] : degrees_) {
        const auto is_far = [](int a, int b) { return a > 2 * b || b > 2 * a; };
        if (bound.seconds >= before || degrees.precision != from.degrees.precision || degrees.batch != from.degrees.batch ||
            is_far(degrees.tp, from.degrees.tp) || is_far(degrees.pp, from.degrees.pp) || is_far(degrees.dp, from.degrees.dp))
          continue;
        std::vector<PendingLayout> found;
        expand(degrees, found, uncounted);
        for (PendingLayout& one : found)
          if (is_neighbour(one.combination, from)) near.push_back(std::move(one));
      }
      std::stable_sort(near.begin(), near.end(), is_earlier);
      for (PendingLayout& one : near) {
        if (is_over() || forecasts_.work() > kMaxWork / 2) break;
        forecast_likely_cuts(one);
      }
    }
  }

  void search_time() {
    forecast_plain_layouts();
    forecast_every_branch();
    descend();
    std::vector<PendingLayout> pending;
    std::vector<std::pair<double, size_t>> order;
    for (size_t i = 0; i < degrees_.size(); ++i) {  // Out of time only bounds count.
      costs_.trim();
      order.emplace_back(is_over() ? 0 : bounds_.estimate(degrees_[i].first) * scale(degrees_[i].first.batch), i);
    }
    std::stable_sort(order.begin(), order.end());
    size_t next = 0, next_round = kLayoutsPerRound / 8;
    for (; next < order.size() && !is_over() && counts_.layouts < kMaxLayouts; ++next) {
      const auto& [degrees, bound] = degrees_[order[next].second];
      if (bound.seconds >= pool_.best_objective()) continue;
      expand(degrees, pending, counts_);
      if (pending.size() < next_round) continue;
      forecast_best(pending, kForecastsPerRound);
      // Of very many layouts the unlikely ones are dropped at once.
      const bool is_full = pending.size() > kMaxPending;
      std::erase_if(pending, [&](const PendingLayout& one) {
        if (one.is_done || one.bound.seconds >= pool_.best_objective()) return true;
        const bool is_unlikely = is_full && one.estimate > kMaxEstimateFactor * pool_.best_objective();
        if (is_unlikely) record_unproved(one.combination, one.bound);
        return is_unlikely;
      });
      next_round = pending.size() + kLayoutsPerRound;
    }
    for (; next < order.size(); ++next)
      if (degrees_[order[next].second].second.seconds < pool_.best_objective()) record_unproved(degrees_[order[next].second].second);
    std::stable_sort(pending.begin(), pending.end(), is_earlier);
    const double likely_cuts_end = 0.5 * (forecasts_.work() + kMaxWork);
    for (PendingLayout& one : pending) {
      if (is_over() || forecasts_.work() > likely_cuts_end) break;
      if (one.estimate < kMaxEstimateFactor * pool_.best_objective()) forecast_likely_cuts(one);
    }
    // Trying all cuts is expensive: layouts whose likely cuts came closest to the best go first.
    for (PendingLayout& one : pending)
      if (const auto found = likely_outcomes_.find(key_of(one.combination));
          found != likely_outcomes_.end() && std::isfinite(found->second.best))
        one.estimate = found->second.best;
    std::stable_sort(pending.begin(), pending.end(), is_earlier);
    for (PendingLayout& one : pending) {
      if (is_over() || forecasts_.work() > kMaxWork) break;
      forecast_all_cuts(one);
    }
    for (const PendingLayout& one : pending)
      if (!one.is_done) record_unproved(one.combination, one.bound);
    descend();
    improve_best();
    if (request_.may_compress) try_compression();
    search_memory(kMemoryForecasts, false, forecasts_.work() + kMaxMemoryWork);
    try_branches_and_replicas();
  }

  /// Comes last, because descents only know cuts into runs of layers. The bound of such plans is the area, whatever was proved of others.
  void try_branches_and_replicas() {
    if (pool_.empty() || is_over()) return;
    const RankedPlan before = pool_.best();
    for (const GoalSteps& point : space_.batches())
      if (point.batch_size == before.global_batch && space_.has_undivided_costs(before.candidate.layout.precision))
        forecast_branches_and_replicas(space_, before.candidate.layout.precision, point, forecasts_, [this] { return is_over(); });
    if (pool_.best_objective() < before.objective) record_unproved(degrees_.front().second);
  }

  void forecast_best(std::vector<PendingLayout>& pending, size_t count) {
    std::vector<PendingLayout*> order;
    for (PendingLayout& one : pending)
      if (!one.is_done && !likely_outcomes_.contains(key_of(one.combination))) order.push_back(&one);
    count = std::min(count, order.size());
    std::partial_sort(
        order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
        [](const PendingLayout* a, const PendingLayout* b) { return a->estimate != b->estimate ? a->estimate < b->estimate : a < b; });
    for (size_t i = 0; i < count && !is_over() && forecasts_.work() < kMaxWork / 2; ++i) forecast_likely_cuts(*order[i]);
  }

  void improve_best() {
    std::vector<RankedPlan> starts;
    if (!pool_.empty()) starts.push_back(pool_.best());
    for (const RankedPlan& plan : pool_.runners_up(kNumImprovedPlans - 1)) starts.push_back(plan);
    for (const RankedPlan& plan : starts)
      if (!is_over()) forecasts_.improve(plan, space_.combination_of(plan), kMaxImproveWork);
  }

  /// A stronger rounding must gain kMinCompressionGain over the milder one.
  void try_compression() {
    if (pool_.empty() || space_.compressions().size() < 2) return;
    // Runs accept compression with dp alone. Start from the best such plans without compression.
    std::vector<PendingLayout> plain;
    for (const auto& [degrees, bound] : degrees_)
      if (degrees.dp > 1 && degrees.pp == 1 && degrees.tp == 1 && bound.seconds < pool_.best_objective()) {
        std::vector<Combination> found;
        int64_t refused = 0;
        space_.add_combinations(degrees, found, refused);
        for (const Combination& one : found)
          if (one.zero == 0) plain.push_back({one, bound, bounds_.estimate(one) * scale(degrees.batch)});
      }
    std::stable_sort(plain.begin(), plain.end(), is_earlier);
    const double unrounded = pool_.best_objective();
    double best = unrounded;
    std::optional<PlanPool> taken;
    for (size_t i = 0; i < std::min<size_t>(plain.size(), 8); ++i) {
      std::vector<Combination> rounded;
      space_.add_compressed(plain[i].combination, rounded, counts_.refused);
      counts_.layouts += static_cast<int64_t>(rounded.size());
      for (const Combination& one : rounded) {
        PlanPool pool(request_.objective);
        CutForecasts evaluation(space_, costs_, pool, [this] { return is_over(); });
        evaluation.by_search(one);
        if (pool.empty() || pool.best_objective() > (1 - kMinCompressionGain) * best) continue;
        best = pool.best_objective();
        taken = std::move(pool);
      }
    }
    if (taken) pool_.add(taken->best());
  }

  /// Forecasts layouts in the order of their estimated memory.
  void search_memory(size_t count, bool is_objective, double most_work = kMaxWork) {
    std::vector<PendingLayout> all;
    std::vector<std::pair<double, size_t>> order;
    for (size_t i = 0; i < degrees_.size(); ++i) {
      costs_.trim();
      order.emplace_back(is_over() ? 0 : bounds_.estimate_bytes(degrees_[i].first), i);
    }
    std::stable_sort(order.begin(), order.end());
    for (size_t i = 0; i < order.size(); ++i) {
      if (is_over() || all.size() > kMaxPending) {
        if (is_objective) record_unproved({0, "memory"});
        break;
      }
      std::vector<Combination> found;
      int64_t refused = 0;
      space_.add_combinations(degrees_[order[i].second].first, found, is_objective ? counts_.refused : refused);
      if (is_objective) counts_.layouts += static_cast<int64_t>(found.size());
      for (const Combination& one : found) {
        costs_.trim();
        const TimeBound bound{bounds_.memory_bytes(one), "memory"};
        if (forecasts_.work_of(one) <= kMostForecastWork) all.push_back({one, bound, bounds_.estimate_bytes(one)});
        else if (is_objective) record_unproved(bound);
      }
    }
    std::stable_sort(all.begin(), all.end(), is_earlier);
    size_t tried = 0;
    for (PendingLayout& one : all) {
      if (is_over() || tried >= count || forecasts_.work() > most_work) break;
      if (is_objective && one.bound.seconds >= pool_.best_objective()) {
        one.is_done = true;
        continue;
      }
      ++tried;
      if (is_objective) {
        const auto outcome = forecasts_.by_trying_all(one.combination);
        one.is_done = outcome && outcome->is_exact && !is_cut_short_;
        counts_.done += one.is_done ? 1 : 0;
      }
      if (!one.is_done) forecasts_.by_memory(one.combination);
    }
    if (is_objective)
      for (const PendingLayout& one : all)
        if (!one.is_done) record_unproved(one.bound);
  }

  [[noreturn]] void fail_infeasible() {
    const auto& least = forecasts_.least_memory();
    if (!least && is_cut_short_) fail(ErrorCode::kInfeasible, "plan: the search was stopped before it had a plan; give it more time");
    if (const std::string why = least ? "" : space_.why_no_layouts(); !why.empty()) fail(ErrorCode::kBadInput, "plan: ", why);
    if (!least) fail(ErrorCode::kInfeasible, "plan: no layout of at most ", space_.most_workers(), " devices can be run");
    if (!request_.says_what_would_fit) fail(ErrorCode::kInfeasible, "plan: no layout of at most ", space_.most_workers(), " devices fits");
    fail(ErrorCode::kInfeasible, why_infeasible(request_, *least, [this](const SearchRequest& larger, double seconds) {
           SearchRequest request = larger;
           request.search_seconds = seconds;
           return JointSearch(request, nullptr, stop_).least_memory();
         }));
  }

  PlanAnswer answer() {
    PlanAnswer out;
    out.best = pool_.best();
    out.runners_up = pool_.runners_up(request_.num_runners_up);
    out.front = pool_.front();
    const double best = out.best.objective;
    out.lower_bound = std::min(unproved_.seconds, best);
    out.bound_by = unproved_.seconds < best ? unproved_.by : "all layouts were tried or excluded by their bounds";
    out.optimal = best <= out.lower_bound * (1 + 1e-9);
    out.is_complete = !is_cut_short_;
    out.num_layouts = counts_.layouts;
    out.num_refused = counts_.refused;
    out.search_seconds = steady_seconds() - start_;
    return out;
  }

  const SearchRequest& request_;
  const std::function<void(const SearchProgress&)>& progress_;
  const std::atomic<bool>* stop_;
  double start_, last_progress_ = 0;
  SearchSpace space_;
  CostTable costs_;
  BoundTable bounds_;
  PlanPool pool_;
  CutForecasts forecasts_;
  std::vector<std::pair<Degrees, TimeBound>> degrees_;
  std::set<Key> tried_all_;
  std::map<Key, CutForecasts::Outcome> likely_outcomes_;
  TimeBound unproved_{kInfinite, ""};  ///< The least bound of what was neither tried completely nor excluded.
  bool is_cut_short_ = false;
  SearchCounts counts_;
};

}  // namespace

const std::vector<std::string>& objective_names() {
  static const std::vector<std::string> kNames = {"step-time", "throughput", "memory", "time-to-goal"};
  return kNames;
}

PlanAnswer search_plan(const SearchRequest& request, const std::function<void(const SearchProgress&)>& progress,
                       const std::atomic<bool>* stop) {
  return JointSearch(request, progress, stop).run();
}

std::optional<PlanAnswer> search_plan_if_any(const SearchRequest& request, const std::function<void(const SearchProgress&)>& progress,
                                             const std::atomic<bool>* stop) {
  try {
    return search_plan(request, progress, stop);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInfeasible && error.code() != ErrorCode::kBadInput) throw;
    return std::nullopt;
  }
}

std::optional<int> least_number(int fails, const std::function<bool(int)>& holds) {
  constexpr int kMaxDoublings = 6;
  for (int doubling = 0; doubling < kMaxDoublings; ++doubling, fails *= 2) {
    if (!holds(2 * fails)) continue;
    int found = 2 * fails;
    while (found - fails > 1) {
      const int middle = fails + (found - fails) / 2;
      (holds(middle) ? found : fails) = middle;
    }
    return found;
  }
  return std::nullopt;
}

}  // namespace cohort
