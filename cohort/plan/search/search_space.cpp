// The layouts of a request: degrees, and for one choice of degrees everything else but cut and recompute.
//
//   precision     those with points in the profile for every kind of device used
//   tp            divisors of the devices of every host (so that a layer is divided inside of a host) with points in the profile
//   pp            1 .. layers; above kEveryCount divisors of the layers and powers of two
//   dp            1 .. samples; above kEveryDegree samples the least dp for each size of a replica's share, divisors and powers of two;
//                 above kEveryCount only those that are 1 % apart
//   micro-batches  (pp > 1), accumulate (pp = 1): 1 .. samples of a share; above kEveryPiece samples the least number for each size of a
//                 micro-batch, spaced by factors of at most 1.5, and powers of two
//   zero, schedule, order, shares (of a dp alone on mixed devices)
//
// No choice depends on memory, links or unused devices: a larger or faster cluster has all layouts of a smaller one, so its best plan is
// no worse.

#include "cohort/plan/search/search_space.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/job/refusals.h"

namespace cohort {
namespace {

constexpr int64_t kEveryDegree = 128, kEveryPiece = 32, kEveryCount = 1024;
constexpr int64_t kMostMicroBatches = 4096, kMostPairs = int64_t{2} << 20;  // The limit of schedule/, and what a forecast can afford.
constexpr int kMostShares = 512;

int64_t rounded_up(int64_t value, int64_t parts) { return (value + parts - 1) / parts; }

/// The least number of micro-batches for each size of a micro-batch of `whole` samples, and powers of two; ascending.
std::vector<int64_t> piece_counts(int64_t whole, int64_t most, int64_t all_up_to, bool thin) {
  std::set<int64_t> counts;
  const int64_t end = std::min(whole, most);
  if (whole <= all_up_to) {
    for (int64_t count = 1; count <= end; ++count) counts.insert(count);
    return {counts.begin(), counts.end()};
  }
  double last = 0;
  for (int64_t count = 1; count <= end;) {
    const int64_t size = rounded_up(whole, count);
    const double apart = thin ? 1.5 : count > kEveryCount ? 1.01 : 0;
    if (whole % count == 0 || static_cast<double>(count) >= apart * last) {
      counts.insert(count);
      last = static_cast<double>(count);
    }
    if (size <= 1) break;
    count = std::max(count + 1, rounded_up(whole, size - 1));
  }
  for (int64_t power = 1; power <= end; power *= 2) counts.insert(power);
  return {counts.begin(), counts.end()};
}

Layout parse_given(const std::map<std::string, std::string>& fixed) {
  std::vector<std::string> pairs;
  for (const auto& [key, value] : fixed) pairs.push_back(concat(key, "=", value));
  return parse_layout(pairs.empty() ? "single" : join(pairs, ","), 0);
}

}  // namespace

SearchSpace::SearchSpace(const SearchRequest& request) : request_(request), given_(parse_given(request.fixed)) {
  const PlanProblem& problem = request.problem;
  if (problem.profile.layers.empty() || problem.cluster.devices.empty() || problem.cluster.hosts.empty())
    fail(ErrorCode::kBadInput, "plan: a profile with layers and a cluster with devices are needed");
  if (is_given("split") && given_.split == "branches")
    fail(ErrorCode::kBadInput, name_settings("--layout split=branches: a search cuts into runs of layers; leave it out"));
  if (given_.schedule.ends_with(".json"))
    fail(ErrorCode::kBadInput, name_settings("--layout schedule="), given_.schedule,
         ": a search chooses among named schedules; leave it out or name one");
  if (!is_step(given_.sync)) fail(ErrorCode::kBadInput, name_settings("--layout sync="), given_.sync, ": only sync=step is planned");
  if (is_given("compress") && given_.compress != "none" && !request.may_compress)
    fail(ErrorCode::kBadInput, name_settings("--layout compress="), given_.compress,
         ": gradients are exchanged as they are unless compression is allowed");
  const int devices = problem.cluster.num_devices();
  if (request.num_workers > devices)
    fail(ErrorCode::kBadInput, name_settings("--workers "), request.num_workers, ": the cluster has ", devices, " devices");
  most_workers_ = request.most_workers();

  if (request.objective == Objective::kTimeToGoal) {
    for (const GoalSteps& point : request.steps_curve)
      if (request.num_samples == 0 || point.batch_size <= request.num_samples) batches_.push_back(point);
    if (batches_.empty())
      fail(ErrorCode::kBadInput, "plan: the time to a goal needs a curve of steps with a batch size of at most the ", request.num_samples,
           " samples there are; it has ", request.steps_curve.size(), " points");
  } else {
    const int64_t batch = problem.global_batch;
    if (request.num_samples > 0 && batch > request.num_samples)
      fail(ErrorCode::kBadInput, name_settings("--global-batch "), batch, " is more than the ", request.num_samples, " samples there are");
    batches_.push_back({batch, 1, 1, 1});
  }
  for (const GoalSteps& point : batches_)
    if (point.batch_size < 1) fail(ErrorCode::kBadInput, "plan: a batch of ", point.batch_size, " samples");

  std::set<std::string> precisions;
  for (const ProfilePoint& point : problem.profile.points) precisions.insert(point.precision);
  if (is_given("precision")) precisions = {given_.precision};
  // fp32 comes first, so that it wins ties.
  precisions_.assign(precisions.begin(), precisions.end());
  std::stable_partition(precisions_.begin(), precisions_.end(), [](const std::string& name) { return name == "fp32"; });
  schedules_ = {"1f1b",          "gpipe", "zb-h1", "interleaved:2", "interleaved:3", "interleaved:4",
                "interleaved:8", "bfs:2", "bfs:3", "bfs:4",         "bfs:8",         "zb-v"};
  if (is_given("schedule")) {
    num_stages_of(given_.schedule, 2);  // Refuses unknown names.
    schedules_ = {given_.schedule};
  }
  for (const std::string& schedule : schedules_) chunks_.push_back(num_stages_of(schedule, 2) / 2);
  orders_ = {"dp-pp-tp", "pp-dp-tp"};
  if (is_given("order")) orders_ = {given_.order};
  compressions_ = {"none", "bf16", "int8", "topk:0.01", "powersgd:4"};
  if (is_given("compress")) compressions_ = {given_.compress};
}

std::vector<int> SearchSpace::kinds(int num_ranks) const {
  std::vector<int> out;
  int ranks = 0;
  for (const HostGroup& group : request_.problem.cluster.hosts) {
    if (ranks >= num_ranks) break;
    const auto num_named = static_cast<int>(std::max<size_t>(1, group.mixed.size()));
    for (int place = 0; place < std::min(num_named, num_ranks - ranks); ++place)
      if (std::find(out.begin(), out.end(), group.kind_of(place)) == out.end()) out.push_back(group.kind_of(place));
    ranks += group.num_hosts * group.devices_per_host;
  }
  return out;
}

std::vector<int> SearchSpace::data_degrees(int64_t batch, int most) const {
  if (is_given("dp")) return given_.dp <= most && given_.dp <= batch ? std::vector<int>{given_.dp} : std::vector<int>{};
  std::vector<int> out;
  for (const int64_t count : piece_counts(batch, most, kEveryDegree, false)) out.push_back(static_cast<int>(count));
  return out;
}

bool SearchSpace::asks_for_stages() const {
  return is_given("schedule") || is_given("split") || (is_given("microbatches") && given_.microbatches > 1);
}

bool SearchSpace::has_undivided_costs(const std::string& precision) const {
  for (const DeviceKind& device : request_.problem.cluster.devices)
    if (!has_points(request_.problem.profile, {device.name, precision, 1, 1})) return false;
  return true;
}

std::string SearchSpace::why_no_degrees() const {
  const ModelProfile& profile = request_.problem.profile;
  const auto known = [&](auto&& of) {
    std::set<std::string> all;
    for (const ProfilePoint& point : profile.points) all.insert(of(point));
    return join({all.begin(), all.end()}, " ");
  };
  if (given_.num_ranks() > most_workers_)
    return concat("the degrees that are given need ", given_.num_ranks(), " ranks, and there are ", most_workers_, " devices");
  if (is_given("pp") && given_.pp == 1 && asks_for_stages())
    return concat(is_given("schedule") ? "schedule"
                  : is_given("split")  ? "split"
                                       : "microbatches",
                  " is for several stages, and pp=1 has one; leave one of the two out");
  if (given_.pp > num_layers()) return concat("pp=", given_.pp, " needs as many layers, and the model has ", num_layers());
  if (asks_for_stages() && (most_workers_ < 2 || num_layers() < 2))
    return "schedule, split and microbatches are for stages, and there is one device or one layer";
  if (is_given("precision") && std::none_of(profile.points.begin(), profile.points.end(),
                                            [&](const ProfilePoint& point) { return point.precision == given_.precision; }))
    return concat("the profile has no costs in ", given_.precision, "; it has: ", known([](const auto& point) { return point.precision; }));
  if (is_given("tp") &&
      std::none_of(profile.points.begin(), profile.points.end(), [&](const ProfilePoint& point) { return point.tp == given_.tp; }))
    return concat("the profile has no costs for tp=", given_.tp,
                  "; it has: ", known([](const auto& point) { return std::to_string(point.tp); }));
  return "no number of workers has the keys that are given, a sample for each rank, costs in the profile, and a rate of its devices";
}

std::string SearchSpace::why_no_layouts() const {
  const std::vector<Degrees> all = all_degrees();
  if (is_given("zero") && given_.zero > 0 && std::none_of(all.begin(), all.end(), [](const Degrees& one) { return one.dp > 1; }))
    return concat("zero=", given_.zero, " divides between replicas, and with the keys that are given on ", most_workers_,
                  " devices there is one: dp is 1");
  std::string why;
  for (const Degrees& degrees : all) {
    const int64_t batch = batch_size(degrees);
    Combination it{.degrees = degrees, .zero = is_given("zero") ? given_.zero : 0};
    if (degrees.pp > 1 && is_given("microbatches")) it.micro_batches = given_.microbatches;
    if (is_given("accumulate")) it.accumulate = given_.accumulate;
    if (const int64_t pieces = int64_t{it.micro_batches} * it.accumulate * degrees.dp; pieces > batch) {
      if (why.empty())
        why = concat("microbatches x accumulate x dp = ", pieces, " pieces need as many samples, and a global batch has ", batch);
      continue;
    }
    const auto text = refusal_of(layout_of(it));
    if (text) {
      why = *text;
      continue;
    }
    const int stages = degrees.pp * stages_per_worker(it);
    if (stages > num_layers())
      why = concat("pp=", degrees.pp, " with schedule=", schedules_.front(), " makes ", stages, " stages, and the model has ", num_layers(),
                   " layers");
    else if (is_given("split"))
      why = concat("split=", given_.split, " names the first layer of each stage but the first: for pp=", degrees.pp,
                   " with schedule=", schedules_.front(), stages == 2 ? " one layer" : concat(" ", stages - 1, " layers, rising,"),
                   " from 1 to ", num_layers() - 1);
  }
  return why;
}

/// Whether every device of a host has costs.
bool SearchSpace::has_costs(const HostGroup& group, const std::string& precision, int tp) const {
  const PlanProblem& problem = request_.problem;
  for (int place = 0; place < static_cast<int>(std::max<size_t>(1, group.mixed.size())); ++place) {
    const DeviceKind& device = problem.cluster.devices[static_cast<size_t>(group.kind_of(place))];
    if (!device.rates.empty() && !device.has(precision)) return false;
    if (!has_points(problem.profile, {device.name, precision, tp, 1})) return false;
  }
  return true;
}

std::vector<Degrees> SearchSpace::all_degrees() const {
  const PlanProblem& problem = request_.problem;
  std::set<int> tensor_degrees;
  for (const ProfilePoint& point : problem.profile.points) tensor_degrees.insert(point.tp);
  if (is_given("tp")) tensor_degrees = {given_.tp};
  std::vector<Degrees> out;
  for (int precision = 0; precision < static_cast<int>(precisions_.size()); ++precision)
    for (const int tp : tensor_degrees) {
      // The ranks that have points, on hosts whose devices tp divides.
      int most_ranks = 0;
      for (const HostGroup& group : problem.cluster.hosts) {
        if (group.devices_per_host % tp != 0 || !has_costs(group, precisions_[static_cast<size_t>(precision)], tp)) break;
        most_ranks += group.num_hosts * group.devices_per_host;
      }
      most_ranks = std::min(most_ranks, most_workers_);
      const int most_stages = static_cast<int>(std::min<int64_t>({most_ranks / tp, num_layers(), kMostMicroBatches}));
      for (int pp = 1; pp <= most_stages; ++pp) {
        if (is_given("pp") && pp != given_.pp) continue;
        if (pp > kEveryCount && !is_given("pp") && num_layers() % pp != 0 && (pp & (pp - 1)) != 0) continue;
        if (pp == 1 && asks_for_stages()) continue;
        for (int batch = 0; batch < static_cast<int>(batches_.size()); ++batch)
          for (const int dp : data_degrees(batches_[static_cast<size_t>(batch)].batch_size, most_ranks / tp / pp))
            if (dp * pp * tp >= request_.least_workers) out.push_back({precision, tp, pp, dp, batch});
      }
    }
  return out;
}

int SearchSpace::stages_per_worker(const Combination& combination) const {
  if (combination.degrees.pp == 1) return 1;
  return chunks_[static_cast<size_t>(combination.schedule)];
}

Layout SearchSpace::layout_of(const Combination& combination) const {
  const Degrees& degrees = combination.degrees;
  Layout layout = given_;
  layout.dp = degrees.dp, layout.tp = degrees.tp, layout.pp = degrees.pp;
  layout.zero = combination.zero;
  if (degrees.pp > 1) layout.schedule = schedule(combination);
  layout.microbatches = combination.micro_batches;
  layout.accumulate = combination.accumulate;
  layout.precision = precision(degrees);
  layout.compress = compressions_[static_cast<size_t>(combination.compress)];
  layout.order = orders_[static_cast<size_t>(combination.order)];
  layout.split = "auto";
  layout.recompute = "none";
  if (!is_given("shares")) layout.shares = combination.has_shares ? shares_of(degrees.dp, degrees, combination.micro_batch) : "equal";
  return layout;
}

Candidate SearchSpace::candidate(const Combination& combination) const {
  Candidate out;
  out.layout = layout_of(combination);
  out.recompute.assign(static_cast<size_t>(num_layers()), false);
  return out;
}

Combination SearchSpace::combination_of(const RankedPlan& plan) const {
  const Layout& layout = plan.candidate.layout;
  const auto index = [](const std::vector<std::string>& names, const std::string& name) {
    const auto found = std::find(names.begin(), names.end(), name);
    return found == names.end() ? 0 : static_cast<int>(found - names.begin());
  };
  Combination out{.degrees = {index(precisions_, layout.precision), layout.tp, layout.pp, layout.dp, 0}};
  for (size_t i = 0; i < batches_.size(); ++i)
    if (batches_[i].batch_size == plan.global_batch) out.degrees.batch = static_cast<int>(i);
  out.zero = layout.zero;
  out.schedule = index(schedules_, layout.schedule);
  out.order = index(orders_, layout.order);
  out.compress = index(compressions_, layout.compress);
  out.micro_batches = layout.microbatches, out.accumulate = layout.accumulate;
  out.has_shares = !is_given("shares") && layout.shares != "equal";
  out.micro_batch = rounded_up(plan.global_batch, int64_t{layout.dp} * layout.microbatches * layout.accumulate);
  return out;
}

/// Samples in proportion to the speed of the ranks' devices, rounded by largest remainders.
std::string SearchSpace::shares_of(int num_ranks, const Degrees& degrees, int64_t micro_batch) const {
  const PlanProblem& problem = request_.problem;
  std::vector<double> speed(problem.cluster.devices.size());
  for (const int kind : kinds(num_ranks)) {
    const Profile profile =
        profile_at(problem.profile, {problem.cluster.devices[static_cast<size_t>(kind)].name, precision(degrees), 1, micro_batch});
    const double seconds = profile.seconds();
    speed[static_cast<size_t>(kind)] = seconds > 0 ? 1 / seconds : 1;
  }
  double sum = 0;
  std::vector<double> of_rank;
  for (int rank = 0; rank < num_ranks; ++rank)
    sum += of_rank.emplace_back(speed[static_cast<size_t>(problem.cluster.device_of_rank(rank))]);
  const int64_t batch = batch_size(degrees);
  std::vector<int64_t> samples;
  std::vector<std::pair<double, int>> rests;
  int64_t left = batch;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const double exact = static_cast<double>(batch) * of_rank[static_cast<size_t>(rank)] / sum;
    samples.push_back(std::max<int64_t>(1, static_cast<int64_t>(exact)));
    rests.emplace_back(static_cast<double>(samples.back()) - exact, rank);
    left -= samples.back();
  }
  std::sort(rests.begin(), rests.end());
  for (size_t i = 0; left > 0; i = (i + 1) % rests.size(), --left) ++samples[static_cast<size_t>(rests[i].second)];
  std::vector<std::string> parts;
  for (const int64_t share : samples) parts.push_back(std::to_string(share));
  return join(parts, ":");
}

bool SearchSpace::runs(const Layout& layout, int64_t& num_refused) const {
  if (!refusal_of(layout)) return true;
  ++num_refused;
  return false;
}

void SearchSpace::add_combinations(const Degrees& degrees, std::vector<Combination>& out, int64_t& num_refused) const {
  const PlanProblem& problem = request_.problem;
  const bool is_pipeline = degrees.pp > 1;
  if (is_given("microbatches") && given_.microbatches > 1 && !is_pipeline) return;
  const int64_t share = rounded_up(batch_size(degrees), degrees.dp);
  std::vector<std::pair<int, int>> pieces;  // Micro-batches, accumulate.
  const bool is_free = is_pipeline ? !is_given("microbatches") : !is_given("accumulate");
  const int given_accumulate = is_given("accumulate") ? given_.accumulate : 1;
  if (is_free)
    for (const int64_t count : piece_counts(rounded_up(share, is_pipeline ? given_accumulate : 1), kMostMicroBatches, kEveryPiece, true))
      pieces.emplace_back(is_pipeline ? count : 1, is_pipeline ? given_accumulate : count);
  else pieces.emplace_back(is_pipeline ? given_.microbatches : 1, given_accumulate);

  const bool orders_differ = is_pipeline && degrees.dp > 1 && problem.cluster.hosts.size() + problem.cluster.hosts.front().num_hosts > 2;
  const bool may_share = !is_given("shares") && degrees.pp == 1 && degrees.tp == 1 && degrees.dp > 1 && degrees.dp <= kMostShares &&
                         kinds(degrees.dp).size() > 1;
  for (int zero = 0; zero <= (degrees.dp > 1 ? 3 : 0); ++zero) {
    if (is_given("zero") ? zero != given_.zero : false) continue;
    for (int shares = 0; shares <= (may_share ? 1 : 0); ++shares) {
      Combination it{.degrees = degrees, .zero = zero, .has_shares = shares == 1};
      if (!runs(layout_of(it), num_refused)) continue;
      for (int order = 0; order < (orders_differ ? static_cast<int>(orders_.size()) : 1); ++order)
        for (const auto& [micro_batches, accumulate] : pieces) {
          if (int64_t{micro_batches} * accumulate * degrees.dp > batch_size(degrees)) continue;
          if (problem.profile.sample_granularity > 1 && int64_t{micro_batches} * accumulate > 1) continue;
          it.order = order, it.micro_batches = micro_batches, it.accumulate = accumulate;
          it.micro_batch = rounded_up(share, int64_t{micro_batches} * accumulate);
          for (int schedule = 0; schedule < (is_pipeline ? static_cast<int>(schedules_.size()) : 1); ++schedule) {
            it.schedule = schedule;
            const int64_t stages = int64_t{degrees.pp} * stages_per_worker(it);
            if (is_pipeline && (stages > std::min<int64_t>(num_layers(), kMostMicroBatches) || stages * micro_batches > kMostPairs))
              continue;
            out.push_back(it);
          }
        }
    }
  }
}

void SearchSpace::add_compressed(const Combination& plain, std::vector<Combination>& out, int64_t& num_refused) const {
  for (int compress = 1; compress < static_cast<int>(compressions_.size()); ++compress) {
    Combination it = plain;
    it.compress = compress;
    if (runs(layout_of(it), num_refused)) out.push_back(it);
  }
}

}  // namespace cohort
