// The joint search against all layouts of small problems, its bound, and what it promises of limits and of larger machines.

#include "cohort/plan/search/joint_search.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "cohort/base/error.h"
#include "cohort/base/system/machine.h"
#include "cohort/job/refusals.h"
#include "cohort/plan/cut/split.h"
#include "cohort/plan/search/cut_forecasts.h"

using namespace cohort;

namespace {

double uniform(std::mt19937& random, double low, double high) { return std::uniform_real_distribution<double>(low, high)(random); }
int whole(std::mt19937& random, int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); }

DeviceKind device(const std::string& name, int64_t memory_bytes) {
  DeviceKind out;
  out.name = name;
  out.memory_bytes = memory_bytes;
  out.rates = {{"fp32", 1e12}, {"bf16", 2e12}};
  out.memory_bytes_per_second = 1e11;
  return out;
}

Cluster cluster_of(int num_hosts, int devices_per_host, int64_t memory_bytes) {
  Cluster out;
  out.name = "made up";
  out.devices = {device("chip", memory_bytes)};
  out.hosts = {{num_hosts, devices_per_host, 0}};
  for (Link& link : out.inside.by_exchange) link = {1e-6, 0, 1e10};
  for (Link& link : out.across.by_exchange) link = {1e-5, 0, 1e9};
  return out;
}

/// A chain, with some edges that skip layers.
PlanProblem random_problem(std::mt19937& random, int num_layers, int num_devices, bool skips) {
  PlanProblem out;
  out.cluster = cluster_of(1, num_devices, int64_t{1} << 40);
  ModelProfile& profile = out.profile;
  profile.model = "random";
  ProfilePoint one, four;
  one.micro_batch = 1, four.micro_batch = 4;
  for (int i = 0; i < num_layers; ++i) {
    ProfiledLayer layer;
    layer.name = "l" + std::to_string(i);
    layer.kind = "linear";
    layer.num_trained = whole(random, 1000, 400'000);
    profile.layers.push_back(layer);
    const double seconds = uniform(random, 1e-4, 2e-3);
    const int64_t bytes = whole(random, 1000, 1'000'000);
    one.layers.push_back({seconds, seconds * uniform(random, 0.5, 1.5), seconds * uniform(random, 0.5, 1.5), 0.95, 1.05, bytes, bytes / 2});
    LayerCost cost = one.layers.back();
    const double times = uniform(random, 2.5, 4);
    cost.forward_seconds *= times, cost.backward_input_seconds *= times, cost.backward_weight_seconds *= times;
    cost.stash_bytes *= 4, cost.output_bytes *= 4;
    four.layers.push_back(cost);
    profile.edges.emplace_back(i - 1, i);
    if (skips && i >= 2 && whole(random, 0, 2) == 0) profile.edges.emplace_back(whole(random, 0, i - 2), i);
  }
  std::sort(profile.edges.begin(), profile.edges.end());
  profile.points = {one, four};
  out.global_batch = whole(random, 1, 6);
  out.optimizer_arrays = whole(random, 0, 2);
  return out;
}

const std::vector<std::string>& all_schedules() {
  static const std::vector<std::string> kNames = {"gpipe", "1f1b", "zb-h1", "interleaved:2", "interleaved:3", "bfs:2", "bfs:3", "zb-v"};
  return kNames;
}

struct Found {
  double best = std::numeric_limits<double>::infinity();
  int64_t least_bytes = std::numeric_limits<int64_t>::max();
  int num_forecasts = 0;
};

/// Every layout, every cut into runs, every set of recomputed layers.
Found try_all(const PlanProblem& problem) {
  Found found;
  const int n = static_cast<int>(problem.profile.layers.size()), devices = problem.cluster.num_devices();
  const auto forecast = [&](const Candidate& candidate) {
    if (refusal_of(candidate.layout)) return;
    const StepForecast its = forecast_step(problem, candidate);
    ++found.num_forecasts;
    found.least_bytes = std::min(found.least_bytes, its.peak_memory_bytes());
    if (its.fits) found.best = std::min(found.best, its.step_seconds);
  };
  const auto all_sets = [&](Candidate candidate) {
    for (int set = 0; set < 1 << n; ++set) {
      candidate.recompute.assign(static_cast<size_t>(n), false);
      for (int i = 0; i < n; ++i) candidate.recompute[static_cast<size_t>(i)] = set >> i & 1;
      forecast(candidate);
    }
  };
  for (int dp = 1; dp <= std::min<int64_t>(devices, problem.global_batch); ++dp)
    for (int zero = 0; zero <= (dp > 1 ? 3 : 0); ++zero)
      for (int pp = 1; pp * dp <= devices; ++pp)
        for (int pieces = 1; pieces * dp <= problem.global_batch; ++pieces) {
          Candidate candidate;
          candidate.layout = {.dp = dp, .pp = pp, .zero = zero, .accumulate = 1, .precision = "fp32", .shares = "equal"};
          if (pp == 1) {
            candidate.layout.accumulate = pieces;
            all_sets(candidate);
            continue;
          }
          candidate.layout.microbatches = pieces;
          for (const std::string& schedule : all_schedules()) {
            const int stages = num_stages_of(schedule, pp);
            if (stages > n) continue;
            candidate.layout.schedule = schedule;
            for (int cuts = 0; cuts < 1 << (n - 1); ++cuts) {
              if (__builtin_popcount(static_cast<unsigned>(cuts)) != stages - 1) continue;
              candidate.stages = {};
              int stage = 0;
              for (int i = 0; i < n; ++i) candidate.stages.stage_of.push_back(stage += i > 0 && (cuts >> (i - 1) & 1) ? 1 : 0);
              for (int i = 0; i < stages; ++i)
                candidate.stages.worker_of_stage.push_back(schedule == "zb-v" ? std::min(i, stages - 1 - i) : i % pp);
              all_sets(candidate);
            }
          }
        }
  return found;
}

SearchRequest request_of(const PlanProblem& problem) {
  SearchRequest request;
  request.problem = problem;
  request.search_seconds = 6000;  // Never reached: a search that is cut short may find something else.
  return request;
}

}  // namespace

TEST_CASE("joint search: never worse than all layouts of small problems, its bound never above them") {
  std::mt19937 random(1);
  int num_optimal = 0, num_tight = 0;
  constexpr int kProblems = 12;
  for (int round = 0; round < kProblems; ++round) {
    PlanProblem problem = random_problem(random, whole(random, 3, 4), whole(random, 2, 3), round % 2 == 1);
    problem.global_batch = whole(random, 1, 4);
    const Found free = try_all(problem);
    if (round % 3 > 0) {  // So that recompute, ZeRO or stages are needed.
      problem.memory_limit_bytes = free.least_bytes + (round % 3 == 1 ? 0 : free.least_bytes / 3);
    }
    const Found all = problem.memory_limit_bytes > 0 ? try_all(problem) : free;
    const PlanAnswer answer = search_plan(request_of(problem), nullptr, nullptr);
    INFO("problem ", round, ": ", to_text(answer.best.candidate.layout), " of ", all.num_forecasts, ", bound by ", answer.bound_by);
    CHECK(answer.best.objective <= all.best * (1 + 1e-12));
    CHECK(answer.best.objective >= all.best * (1 - 1e-12));
    CHECK(answer.lower_bound <= all.best * (1 + 1e-12));
    CHECK(answer.best.forecast.fits);
    CHECK(answer.is_complete);
    num_optimal += answer.optimal ? 1 : 0;
    num_tight += problem.memory_limit_bytes > 0 ? 1 : 0;
  }
  CHECK(num_optimal >= kProblems - 2);
  CHECK(num_tight >= kProblems / 2);
}

TEST_CASE("joint search: more memory, devices or bandwidth never gives a slower plan") {
  std::mt19937 random(7);
  for (int round = 0; round < 8; ++round) {
    PlanProblem problem = random_problem(random, whole(random, 3, 5), 2, round % 2 == 1);
    const auto best = [&](const PlanProblem& one) {
      try {
        return search_plan(request_of(one), nullptr, nullptr).best.objective;
      } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::kInfeasible);
        return std::numeric_limits<double>::infinity();
      }
    };
    double before = std::numeric_limits<double>::infinity();
    for (const int64_t memory : {2'000'000, 6'000'000, 12'000'000, 100'000'000}) {
      problem.memory_limit_bytes = memory;
      const double now = best(problem);
      CHECK(now <= before);
      before = now;
    }
    for (const int devices : {3, 4}) {
      problem.cluster.hosts[0].devices_per_host = devices;
      const double now = best(problem);
      CHECK(now <= before);
      before = now;
    }
    for (const double rate : {2e10, 1e11, 1e12}) {
      for (Link& link : problem.cluster.inside.by_exchange) link.bytes_per_second = rate;
      const double now = best(problem);
      CHECK(now <= before);
      before = now;
    }
  }
}

TEST_CASE("joint search: never slower than data parallelism, an equal pipeline or best_split") {
  std::mt19937 random(3);
  for (int round = 0; round < 3; ++round) {
    PlanProblem problem = random_problem(random, 24, 4, round > 0);
    problem.global_batch = 16;
    const PlanAnswer answer = search_plan(request_of(problem), nullptr, nullptr);
    Candidate plain;
    plain.recompute.assign(24, false);
    plain.layout = {.dp = 4, .accumulate = 1, .precision = "fp32", .shares = "equal"};
    CHECK(answer.best.objective <= forecast_step(problem, plain).step_seconds);
    for (const int m : {4, 8, 16}) {
      plain.layout = {.dp = 1, .pp = 4, .microbatches = m, .accumulate = 1, .precision = "fp32", .shares = "equal"};
      plain.stages = {stage_of_layers({0, 6, 12, 18}, 24), {0, 1, 2, 3}};
      CHECK(answer.best.objective <= forecast_step(problem, plain).step_seconds);
      const Profile profile = profile_at(problem.profile, {"chip", "fp32", 1, 16 / m});
      plain.stages.stage_of = stage_of_layers(best_split(profile, {.num_stages = 4, .num_micro_batches = m}).first_layer, 24);
      CHECK(answer.best.objective <= forecast_step(problem, plain).step_seconds);
    }
    CHECK(answer.lower_bound > 0.5 * answer.best.objective);
    for (size_t i = 1; i < answer.front.size(); ++i) {
      CHECK(answer.front[i - 1].forecast.step_seconds < answer.front[i].forecast.step_seconds);
      CHECK(answer.front[i - 1].forecast.peak_memory_bytes() > answer.front[i].forecast.peak_memory_bytes());
    }
    CHECK(answer.runners_up.size() == 5);
    for (const RankedPlan& plan : answer.runners_up) {
      CHECK(plan.objective >= answer.best.objective);
      CHECK_FALSE(refusal_of(plan.candidate.layout).has_value());
      CHECK(plan.forecast.fits);
    }
  }
}

TEST_CASE("joint search: keys that are given are kept") {
  std::mt19937 random(5);
  PlanProblem problem = random_problem(random, 8, 4, false);
  problem.global_batch = 8;
  SearchRequest request = request_of(problem);
  request.fixed = {{"pp", "2"}, {"schedule", "interleaved:2"}, {"microbatches", "4"}};
  const Layout layout = search_plan(request, nullptr, nullptr).best.candidate.layout;
  CHECK(layout.pp == 2);
  CHECK(layout.schedule == "interleaved:2");
  CHECK(layout.microbatches == 4);
  request.fixed = {{"dp", "2"}, {"pp", "1"}, {"zero", "3"}, {"accumulate", "2"}, {"recompute", "all"}};
  const RankedPlan given = search_plan(request, nullptr, nullptr).best;
  CHECK(given.candidate.layout.dp == 2);
  CHECK(given.candidate.layout.zero == 3);
  CHECK(given.candidate.layout.accumulate == 2);
  CHECK(given.candidate.recompute == std::vector<bool>(8, true));
  request.fixed = {{"pp", "2"}, {"split", "3"}, {"schedule", "1f1b"}};
  CHECK(search_plan(request, nullptr, nullptr).best.candidate.stages.stage_of == stage_of_layers({0, 3}, 8));
  request.fixed = {{"pp", "9"}};
  CHECK_THROWS_AS(search_plan(request, nullptr, nullptr), const Error&);
  request.fixed = {{"nonsense", "9"}};
  CHECK_THROWS_AS(search_plan(request, nullptr, nullptr), const Error&);
}

TEST_CASE("joint search: time to a goal chooses the batch, memory the least") {
  std::mt19937 random(9);
  PlanProblem problem = random_problem(random, 6, 4, false);
  SearchRequest request = request_of(problem);
  request.objective = Objective::kTimeToGoal;
  request.steps_curve = {{1, 800, 700, 900}, {4, 210, 200, 230}, {16, 100, 90, 120}};
  const PlanAnswer answer = search_plan(request, nullptr, nullptr);
  double least = std::numeric_limits<double>::infinity();
  for (const GoalSteps& point : request.steps_curve) {
    problem.global_batch = point.batch_size;
    least = std::min(least, point.steps * search_plan(request_of(problem), nullptr, nullptr).best.objective);
  }
  CHECK(answer.best.objective == doctest::Approx(least).epsilon(1e-9));
  CHECK(answer.lower_bound <= answer.best.objective);
  CHECK(answer.best.low <= answer.best.objective);
  request.num_samples = 3;
  CHECK(search_plan(request, nullptr, nullptr).best.global_batch == 1);

  problem = random_problem(random, 4, 3, false);
  problem.global_batch = 3;
  request = request_of(problem);
  request.objective = Objective::kMemory;
  const PlanAnswer small = search_plan(request, nullptr, nullptr);
  const Found all = try_all(problem);
  CHECK(small.best.forecast.peak_memory_bytes() == all.least_bytes);
  CHECK(small.lower_bound <= static_cast<double>(all.least_bytes));
}

TEST_CASE("joint search: nothing fits; with the memory that the message names a plan does") {
  std::mt19937 random(11);
  PlanProblem problem = random_problem(random, 5, 2, false);
  problem.global_batch = 2;
  problem.memory_limit_bytes = try_all(problem).least_bytes - 1;
  std::string text;
  try {
    search_plan(request_of(problem), nullptr, nullptr);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInfeasible);
    text = error.what();
  }
  INFO(text);
  const size_t needs = text.find(" needs ");
  REQUIRE(needs != std::string::npos);
  problem.memory_limit_bytes = std::stoll(text.substr(needs + 7));
  CHECK(search_plan(request_of(problem), nullptr, nullptr).best.forecast.fits);
  --problem.memory_limit_bytes;
  CHECK_THROWS_AS(search_plan(request_of(problem), nullptr, nullptr), const Error&);
}

TEST_CASE("joint search: costs of divided layers alone are enough in a precision") {
  std::mt19937 random(17);
  PlanProblem problem = random_problem(random, 3, 4, false);
  for (const ProfilePoint& point : {problem.profile.points[0], problem.profile.points[1]}) {
    ProfilePoint divided = point;
    divided.precision = "bf16", divided.tp = 2;
    for (LayerCost& cost : divided.layers)
      cost.forward_seconds /= 20, cost.backward_input_seconds /= 20, cost.backward_weight_seconds /= 20;
    problem.profile.points.push_back(divided);
  }
  for (ProfiledLayer& layer : problem.profile.layers) layer.tensor_parts = 4;
  const RankedPlan best = search_plan(request_of(problem), nullptr, nullptr).best;  // It looks beyond runs of layers, too, undivided.
  CHECK(best.candidate.layout.tp == 2);
  CHECK(best.candidate.layout.precision == "bf16");
}

TEST_CASE("joint search: no degrees that are given need less memory than what is chosen freely") {
  std::mt19937 random(19);
  for (int round = 0; round < 6; ++round) {
    PlanProblem problem = random_problem(random, whole(random, 2, 6), 6, false);
    ProfilePoint half = problem.profile.points[0];
    half.precision = "bf16";
    problem.profile.points.push_back(half);
    problem.global_batch = 64;
    SearchRequest request = request_of(problem);
    request.objective = Objective::kMemory;
    const double least = search_plan(request, nullptr, nullptr).best.objective;
    for (const int dp : {1, 2, 6}) {
      request.fixed = {{"dp", std::to_string(dp)}, {"pp", "1"}, {"precision", "fp32"}};
      CHECK(least <= search_plan(request, nullptr, nullptr).best.objective);
    }
  }
}

TEST_CASE("joint search: ends when it is told to, and within its time") {
  std::mt19937 random(13);
  PlanProblem problem = random_problem(random, 200, 1, false);
  problem.cluster = cluster_of(32, 8, int64_t{1} << 40);
  problem.global_batch = 512;
  SearchRequest request = request_of(problem);
  request.search_seconds = 1;
  int num_calls = 0;
  double last = -1;
  const double start = process_cpu_seconds();  // What other programs take is not the search's.
  const PlanAnswer answer = search_plan(
      request,
      [&](const SearchProgress& progress) {
        ++num_calls;
        CHECK(progress.seconds - last >= 0.19);
        CHECK(progress.lower_bound <= progress.best);
        last = progress.seconds;
      },
      nullptr);
  CHECK(process_cpu_seconds() - start < 3);
  CHECK_FALSE(answer.is_complete);
  CHECK(answer.lower_bound <= answer.best.objective);
  CHECK(num_calls <= 10);
  const std::atomic<bool> stop = true;
  CHECK_THROWS_AS(search_plan(request, nullptr, &stop), const Error&);
  // More degrees than there is time for.
  problem.cluster = cluster_of(1 << 17, 8, int64_t{1} << 40);
  problem.global_batch = 1'000'000'000;
  request = request_of(problem);
  request.search_seconds = 1;
  const double begin = process_cpu_seconds();
  const PlanAnswer large = search_plan(request, nullptr, nullptr);
  CHECK(process_cpu_seconds() - begin < 20);
  CHECK_FALSE(large.is_complete);
  CHECK(large.lower_bound <= large.best.objective);
}
