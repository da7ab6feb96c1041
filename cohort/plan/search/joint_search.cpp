// The joint search: every layout has a bound, few have a forecast.
//
//   1. Degrees (precision, tp, pp, dp, batch), each with the bound of its area (combination_bound.h). Data parallelism over all
//      devices, an equal pipeline and the most promising layouts of every branch (precision, tp, pp) are forecast first, so that there is
//      something to beat; then the best goes to better neighbours.
//   2. Degrees below the best so far are taken apart into layouts (search_space.h); those whose own bound is no less than the best are done
//      with, the others wait, by what an even cut would take. From time to time the most promising are forecast, which lowers the best.
//   3. The layouts that wait are forecast in that order as long as their bound is below the best: all cuts with all sets of recomputed
//      layers where these are few, else the cuts of cut_forecasts.h. A layout of which all was tried has its best plan as its bound.
//   4. The best few plans are improved by moving boundaries. Where gradients may be rounded, it is tried on the best plans that can, and
//      taken where it brings kCompressionGain, mild before strong.
//   5. Layouts with little memory are forecast too: for the front, and for plans that fit where nothing else does.
//
//   6. Small problems: branches side by side and stages with replicas of their own (irregular.cpp), which are outside of the class.
//
// Lower bound: the least of the bounds of all that was neither tried completely nor excluded, and of the best plan. The class it is proved
// for: joint_search.md. Work is counted in simulated actions, so that the answer does not depend on the machine's speed; time only cuts it
// short. Cost: degrees log degrees + layouts + kMostWork actions.

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
#include "cohort/plan/search/plan_pool.h"
#include "cohort/plan/search/search_space.h"

namespace cohort {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kMostWork = 2.5e7, kImproveWork = 4e5, kMemoryWork = 4e5, kCompressionGain = 0.05, kProgressSeconds = 0.2;
constexpr double kMostDegreesShare = 0.3;  // Of the time, to bound the degrees.
constexpr double kHopeless = 1.15;         // Times the best: by an estimate without memory's details.
constexpr int64_t kMostLayouts = 300'000;
constexpr size_t kMostWaiting = 20'000, kWave = 4'000, kWaveForecasts = 12, kMemoryForecasts = 24, kMostMemoryForecasts = 300,
                 kMemoryObjective = 3000;
constexpr int kImproved = 5, kMostDescents = 12, kEveryBranch = 64;

/// Near the golden section of n, so that its multiples are spread evenly; it meets all of 0 .. n - 1.
size_t coprime_stride(size_t n) {
  auto stride = std::max<size_t>(1, static_cast<size_t>(0.618 * static_cast<double>(n)));
  while (std::gcd(stride, n) != 1) ++stride;
  return stride;
}

struct Waiting {
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
        evaluation_(space_, costs_, pool_, [this] { return is_over(); }) {}

  PlanAnswer run() {
    find_degrees();
    if (request_.objective == Objective::kMemory) search_memory(kMemoryObjective, true);
    else search_time();
    if (pool_.empty() && request_.objective != Objective::kMemory) search_memory(kMostMemoryForecasts, false);
    if (pool_.empty()) give_up();
    return answer();
  }

  /// Whether it fits or not.
  std::optional<RankedPlan> least_memory() {
    find_degrees();
    search_memory(kMostMemoryForecasts, false);
    return evaluation_.least_memory();
  }

 private:
  bool is_over() {
    if (is_cut_short_) return true;
    const double now = steady_seconds();
    if (progress_ && now - last_progress_ >= kProgressSeconds) {
      last_progress_ = now;
      progress_({pool_.best_objective(), std::min(degrees_.empty() ? 0 : degrees_.front().second.seconds, pool_.best_objective()),
                 now - start_, num_layouts_, num_done_});
    }
    return is_cut_short_ = now - start_ > request_.search_seconds || (stop_ && stop_->load());
  }

  /// Seconds of a step in units of the objective.
  double scale(int batch) const {
    const GoalSteps& point = space_.batches()[static_cast<size_t>(batch)];
    if (request_.objective == Objective::kThroughput) return 1 / static_cast<double>(point.batch_size);
    return request_.objective == Objective::kTimeToGoal ? point.steps : 1;
  }

  /// In strides, so that what is met before time is up is a sample of all.
  void find_degrees() {
    const std::vector<Degrees> all = space_.all_degrees();
    if (all.empty()) fail(ErrorCode::kBadInput, "plan: ", space_.why_no_degrees());
    const size_t stride = coprime_stride(all.size());
    for (size_t i = 0, at = 0; i < all.size(); ++i, at = (at + stride) % all.size()) {
      if (i % 64 == 63 && (is_over() || steady_seconds() - start_ > kMostDegreesShare * request_.search_seconds)) {
        leave_open({0, "area"});
        break;
      }
      TimeBound bound = bounds_.of_degrees(all[at]);
      bound.seconds *= scale(all[at].batch);
      degrees_.push_back({all[at], bound});
    }
    const auto key = [](const std::pair<Degrees, TimeBound>& one) {  // Of equals the simpler first.
      const Degrees& its = one.first;
      return std::tuple(one.second.seconds, its.precision, its.tp, its.pp, its.batch, its.dp);
    };
    std::sort(degrees_.begin(), degrees_.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  }

  /// Appends the layouts of one choice of degrees that may be better than the best.
  void take_apart(const Degrees& degrees, std::vector<Waiting>& out) {
    std::vector<Combination> found;
    space_.add_combinations(degrees, found, num_refused_);
    num_layouts_ += static_cast<int64_t>(found.size());
    for (const Combination& combination : found) {
      costs_.trim();
      TimeBound bound = bounds_.of_combination(combination, false);
      bound.seconds *= scale(degrees.batch);
      if (bound.seconds >= pool_.best_objective()) ++num_done_;  // Excluded: the best only falls.
      else if (const double work = evaluation_.work_of(combination); work > kMostForecastWork) leave_open(combination, bound);
      else if (is_over()) leave_open(bound);
      // Of layouts that seem equal the one that is forecast sooner goes first.
      else
        out.push_back({combination, bound, bounds_.estimate(combination) * scale(degrees.batch) * (1 + 0.02 * std::log2(1 + work / 1e4))});
    }
  }

  /// The likely cuts alone: for a good plan early. Nothing is proved by it but where there is one cut.
  void glance(Waiting& waiting) {
    const Key key = key_of(waiting.combination);
    if (waiting.is_done || evaluated_.contains(key) || glanced_.contains(key)) return;
    waiting.bound = with_flush(waiting.combination);
    if (waiting.bound.seconds >= pool_.best_objective()) return;
    const CutForecasts::Outcome outcome = evaluation_.by_search(waiting.combination);
    if (!is_cut_short_) glanced_.emplace(key, outcome);
  }

  void evaluate(Waiting& waiting) {
    if (waiting.is_done) return;
    if (!evaluated_.insert(key_of(waiting.combination)).second) {  // Branches and neighbours come before the list.
      waiting.is_done = true;
      return;
    }
    waiting.bound = with_flush(waiting.combination);
    if (waiting.bound.seconds >= pool_.best_objective()) {
      waiting.is_done = true;
      ++num_done_;
      return;
    }
    auto outcome = evaluation_.by_trying_all(waiting.combination);
    if (!outcome && waiting.estimate > kHopeless * pool_.best_objective()) {
      outcome = CutForecasts::Outcome{false, kInfinite};
    } else if (!outcome || !outcome->is_exact) {
      const auto glanced = glanced_.find(key_of(waiting.combination));
      const CutForecasts::Outcome searched = glanced != glanced_.end() ? glanced->second : evaluation_.by_search(waiting.combination);
      outcome = {searched.is_exact, outcome ? std::min(outcome->best, searched.best) : searched.best};
    }
    if (is_cut_short_) return;  // Nothing is claimed of what was not finished.
    waiting.is_done = true;
    ++num_done_;
    // What rounding would bring there was not tried on all cuts; bounds count no exchange that it could shorten.
    const bool may_round = request_.may_compress && waiting.combination.degrees.dp > 1;
    if (!outcome->is_exact || may_round) leave_open(waiting.bound);
  }

  TimeBound with_flush(const Combination& combination) {
    TimeBound bound = bounds_.of_combination(combination, true);
    bound.seconds *= scale(combination.degrees.batch);
    return bound;
  }

  void leave_open(const TimeBound& bound) {
    if (bound.seconds < open_.seconds) open_ = bound;
  }
  /// With its cheap bound; the flush is looked at where that counts.
  void leave_open(const Combination& combination, const TimeBound& cheap) {
    if (cheap.seconds < open_.seconds) leave_open(is_cut_short_ ? cheap : with_flush(combination));
  }

  using Key = std::array<int64_t, 12>;
  static Key key_of(const Combination& one) {
    return {one.degrees.precision, one.degrees.tp, one.degrees.pp, one.degrees.dp,    one.degrees.batch, one.zero,
            one.schedule,          one.order,      one.compress,   one.micro_batches, one.accumulate,    one.has_shares ? 1 : 0};
  }

  static bool is_earlier(const Waiting& a, const Waiting& b) { return a.estimate < b.estimate; }

  /// Data parallelism over all devices, and an equal pipeline.
  void forecast_plain_layouts() {
    const auto widest = [&](auto&& degree_of, auto&& is_plain) {
      const Degrees* best = nullptr;
      for (const auto& [degrees, bound] : degrees_)
        if (is_plain(degrees) && (!best || degree_of(degrees) > degree_of(*best))) best = &degrees;
      if (!best) return;
      std::vector<Waiting> plain;
      take_apart(*best, plain);
      num_layouts_ -= static_cast<int64_t>(plain.size());  // They are counted with all others.
      std::stable_sort(plain.begin(), plain.end(), is_earlier);
      for (size_t i = 0; i < std::min<size_t>(plain.size(), 4) && !is_over(); ++i)
        if (evaluation_.work_of(plain[i].combination) < kMostWork / 100) evaluation_.by_search(plain[i].combination);
    };
    widest([](const Degrees& d) { return d.dp; }, [](const Degrees& d) { return d.pp == 1 && d.tp == 1; });
    widest([](const Degrees& d) { return d.pp; }, [](const Degrees& d) { return d.dp == 1 && d.tp == 1 && d.pp > 1; });
  }

  /// Long pipelines of nearly the same length are nearly the same: those with 2^a or 3 * 2^a workers stand for all.
  static bool is_round(int workers) {
    const auto is_power = [](int n) { return (n & (n - 1)) == 0; };
    return is_power(workers) || (workers % 3 == 0 && is_power(workers / 3));
  }

  /// One choice of degrees for each (precision, tp, pp, batch), the most promising: of it the best by estimate under every ZeRO stage
  /// and every schedule, so that none is left out because the estimate errs.
  void forecast_every_branch() {
    std::map<std::array<int, 4>, std::pair<double, const Degrees*>> branches;
    for (const auto& [degrees, bound] : degrees_) {
      if (is_over()) return;
      if (degrees.pp > kEveryBranch && !is_round(degrees.pp)) continue;
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
      if (is_over() || evaluation_.work() > kMostWork / 2) return;
      if (estimate == last) continue;  // The other half precision, as a rule.
      last = estimate;
      std::vector<Waiting> found;
      const int64_t before = num_layouts_, refused = num_refused_, done = num_done_;
      take_apart(*degrees, found);
      num_layouts_ = before, num_refused_ = refused, num_done_ = done;  // They are counted with all others.
      std::stable_sort(found.begin(), found.end(), is_earlier);
      std::set<int> zeros, schedules;
      for (Waiting& one : found) {
        const bool is_new = zeros.insert(one.combination.zero).second, is_new_too = schedules.insert(one.combination.schedule).second;
        if ((is_new || is_new_too) && !is_over()) glance(one);
      }
    }
  }

  /// Whether `one` is `from` with one thing changed: a degree to its half or double with another, ZeRO, schedule, order, micro-batches.
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

  /// From the best plan to better neighbours until there are none.
  void descend() {
    double before = kInfinite;
    for (int round = 0; round < kMostDescents && !pool_.empty() && pool_.best_objective() < before && !is_over(); ++round) {
      before = pool_.best_objective();
      const Combination from = space_.combination_of(pool_.best());
      std::vector<Waiting> near;
      const int64_t layouts = num_layouts_, refused = num_refused_, done = num_done_;
      for (const auto& [degrees, bound] : degrees_) {
        const auto is_far = [](int a, int b) { return a > 2 * b || b > 2 * a; };
        if (bound.seconds >= before || degrees.precision != from.degrees.precision || degrees.batch != from.degrees.batch ||
            is_far(degrees.tp, from.degrees.tp) || is_far(degrees.pp, from.degrees.pp) || is_far(degrees.dp, from.degrees.dp))
          continue;
        std::vector<Waiting> found;
        take_apart(degrees, found);
        for (Waiting& one : found)
          if (is_neighbour(one.combination, from)) near.push_back(std::move(one));
      }
      num_layouts_ = layouts, num_refused_ = refused, num_done_ = done;
      std::stable_sort(near.begin(), near.end(), is_earlier);
      for (Waiting& one : near) {
        if (is_over() || evaluation_.work() > kMostWork / 2) break;
        glance(one);
      }
    }
  }

  void search_time() {
    forecast_plain_layouts();
    forecast_every_branch();
    descend();
    std::vector<Waiting> waiting;
    std::vector<std::pair<double, size_t>> order;
    for (size_t i = 0; i < degrees_.size(); ++i) {  // Out of time only the bounds are still looked at.
      costs_.trim();
      order.emplace_back(is_over() ? 0 : bounds_.estimate(degrees_[i].first) * scale(degrees_[i].first.batch), i);
    }
    std::stable_sort(order.begin(), order.end());
    size_t next = 0, next_wave = kWave / 8;
    for (; next < order.size() && !is_over() && num_layouts_ < kMostLayouts; ++next) {
      const auto& [degrees, bound] = degrees_[order[next].second];
      if (bound.seconds >= pool_.best_objective()) continue;
      take_apart(degrees, waiting);
      if (waiting.size() < next_wave) continue;
      forecast_best(waiting, kWaveForecasts);
      // Of very many, those that can hardly win are left open at once.
      const bool is_full = waiting.size() > kMostWaiting;
      std::erase_if(waiting, [&](const Waiting& one) {
        if (one.is_done || one.bound.seconds >= pool_.best_objective()) return true;
        const bool is_hopeless = is_full && one.estimate > kHopeless * pool_.best_objective();
        if (is_hopeless) leave_open(one.combination, one.bound);
        return is_hopeless;
      });
      next_wave = waiting.size() + kWave;
    }
    for (; next < order.size(); ++next)
      if (degrees_[order[next].second].second.seconds < pool_.best_objective()) leave_open(degrees_[order[next].second].second);
    std::stable_sort(waiting.begin(), waiting.end(), is_earlier);
    const double glances_end = 0.5 * (evaluation_.work() + kMostWork);
    for (Waiting& one : waiting) {
      if (is_over() || evaluation_.work() > glances_end) break;
      if (one.estimate < kHopeless * pool_.best_objective()) glance(one);
    }
    // Trying all is dear: first where the likely cuts came nearest to the best.
    for (Waiting& one : waiting)
      if (const auto glanced = glanced_.find(key_of(one.combination)); glanced != glanced_.end() && std::isfinite(glanced->second.best))
        one.estimate = glanced->second.best;
    std::stable_sort(waiting.begin(), waiting.end(), is_earlier);
    for (Waiting& one : waiting) {
      if (is_over() || evaluation_.work() > kMostWork) break;
      evaluate(one);
    }
    for (const Waiting& one : waiting)
      if (!one.is_done) leave_open(one.combination, one.bound);
    descend();
    improve_best();
    if (request_.may_compress) try_compression();
    search_memory(kMemoryForecasts, false, evaluation_.work() + kMemoryWork);
    leave_the_class();
  }

  /// Last, for descents know cuts into runs alone. Their bound is the area, whatever was proved of the class.
  void leave_the_class() {
    if (pool_.empty() || is_over()) return;
    const RankedPlan before = pool_.best();
    for (const GoalSteps& point : space_.batches())
      if (point.batch_size == before.global_batch && space_.has_undivided_costs(before.candidate.layout.precision))
        try_irregular(space_, before.candidate.layout.precision, point, evaluation_, [this] { return is_over(); });
    if (pool_.best_objective() < before.objective) leave_open(degrees_.front().second);
  }

  void forecast_best(std::vector<Waiting>& waiting, size_t count) {
    std::vector<Waiting*> order;
    for (Waiting& one : waiting)
      if (!one.is_done && !glanced_.contains(key_of(one.combination))) order.push_back(&one);
    count = std::min(count, order.size());
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                      [](const Waiting* a, const Waiting* b) { return a->estimate != b->estimate ? a->estimate < b->estimate : a < b; });
    for (size_t i = 0; i < count && !is_over() && evaluation_.work() < kMostWork / 2; ++i) glance(*order[i]);
  }

  void improve_best() {
    std::vector<RankedPlan> starts;
    if (!pool_.empty()) starts.push_back(pool_.best());
    for (const RankedPlan& plan : pool_.runners_up(kImproved - 1)) starts.push_back(plan);
    for (const RankedPlan& plan : starts)
      if (!is_over()) evaluation_.improve(plan, space_.combination_of(plan), kImproveWork);
  }

  /// A stronger rounding must bring its share on top of the milder one.
  void try_compression() {
    if (pool_.empty() || space_.compressions().size() < 2) return;
    // Only what no run refuses: dp alone. The best such plans without rounding are the start.
    std::vector<Waiting> plain;
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
      space_.add_compressed(plain[i].combination, rounded, num_refused_);
      num_layouts_ += static_cast<int64_t>(rounded.size());
      for (const Combination& one : rounded) {
        PlanPool pool(request_.objective);
        CutForecasts evaluation(space_, costs_, pool, [this] { return is_over(); });
        evaluation.by_search(one);
        if (pool.empty() || pool.best_objective() > (1 - kCompressionGain) * best) continue;
        best = pool.best_objective();
        taken = std::move(pool);
      }
    }
    if (taken) pool_.add(taken->best());
  }

  /// Layouts by what they should need, least first.
  void search_memory(size_t count, bool is_objective, double most_work = kMostWork) {
    std::vector<Waiting> all;
    std::vector<std::pair<double, size_t>> order;
    for (size_t i = 0; i < degrees_.size(); ++i) {
      costs_.trim();
      order.emplace_back(is_over() ? 0 : bounds_.estimate_bytes(degrees_[i].first), i);
    }
    std::stable_sort(order.begin(), order.end());
    for (size_t i = 0; i < order.size(); ++i) {
      if (is_over() || all.size() > kMostWaiting) {
        if (is_objective) leave_open({0, "memory"});
        break;
      }
      std::vector<Combination> found;
      int64_t refused = 0;
      space_.add_combinations(degrees_[order[i].second].first, found, is_objective ? num_refused_ : refused);
      if (is_objective) num_layouts_ += static_cast<int64_t>(found.size());
      for (const Combination& one : found) {
        costs_.trim();
        const TimeBound bound{bounds_.memory_bytes(one), "memory"};
        if (evaluation_.work_of(one) <= kMostForecastWork) all.push_back({one, bound, bounds_.estimate_bytes(one)});
        else if (is_objective) leave_open(bound);
      }
    }
    std::stable_sort(all.begin(), all.end(), is_earlier);
    size_t tried = 0;
    for (Waiting& one : all) {
      if (is_over() || tried >= count || evaluation_.work() > most_work) break;
      if (is_objective && one.bound.seconds >= pool_.best_objective()) {
        one.is_done = true;
        continue;
      }
      ++tried;
      if (is_objective) {
        const auto outcome = evaluation_.by_trying_all(one.combination);
        one.is_done = outcome && outcome->is_exact && !is_cut_short_;
        num_done_ += one.is_done ? 1 : 0;
      }
      if (!one.is_done) evaluation_.by_memory(one.combination);
    }
    if (is_objective)
      for (const Waiting& one : all)
        if (!one.is_done) leave_open(one.bound);
  }

  [[noreturn]] void give_up() {
    const auto& least = evaluation_.least_memory();
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
    out.lower_bound = std::min(open_.seconds, best);
    out.bound_by = open_.seconds < best ? open_.by : "all layouts were tried or excluded by their bounds";
    out.optimal = best <= out.lower_bound * (1 + 1e-9);
    out.is_complete = !is_cut_short_;
    out.num_layouts = num_layouts_;
    out.num_refused = num_refused_;
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
  CutForecasts evaluation_;
  std::vector<std::pair<Degrees, TimeBound>> degrees_;
  std::set<Key> evaluated_;
  std::map<Key, CutForecasts::Outcome> glanced_;
  TimeBound open_{kInfinite, ""};  ///< Of what was neither tried completely nor excluded.
  bool is_cut_short_ = false;
  int64_t num_layouts_ = 0, num_refused_ = 0, num_done_ = 0;
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

}  // namespace cohort
