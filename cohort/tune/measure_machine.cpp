#include "cohort/tune/measure_machine.h"

#include <ATen/Parallel.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/shared_text.h"
#include "cohort/base/statistics.h"
#include "cohort/base/system/machine.h"
#include "cohort/base/text/json.h"
#include "cohort/comm/compute_threads.h"
#include "cohort/comm/tensor_channels.h"
#include "cohort/world/launch.h"
#include "cohort/world/stop.h"

namespace cohort {

Json measure_in_ranks(int num_ranks, const std::string& backend, const std::function<Json(const World& world, Group& group)>& measure) {
  const SharedText answer;
  const int code = run_ranks({.num_ranks = num_ranks, .is_one_of_many = true}, [&](const World& world) {
    restore_default_stop_signals();
    keep_freed_memory();
    use_compute_threads(1);
    Group group = Group::create(world, {.backend = backend});
    const Json measured = measure(world, group);
    if (world.rank == 0) answer.write(measured.dump());
    return 0;
  });
  if (code == static_cast<int>(ErrorCode::kInterrupted)) fail(ErrorCode::kInterrupted, "interrupted while this machine was measured");
  if (code != 0) throw Error(static_cast<ErrorCode>(code), "");  // The launcher has reported the failed rank.
  return Json::parse(answer.read());
}

namespace {

using Clock = std::chrono::steady_clock;

/// Whether the action computes; a receive waits.
bool is_work(const Action& action) { return action.kind != ActionKind::kReceiveForward && action.kind != ActionKind::kReceiveBackward; }

Json to_json(const TimedAction& timed) {
  const Action& action = timed.action;
  return Json{static_cast<int>(action.kind), action.stage, action.micro_batch, action.peer, timed.start, timed.end};
}

TimedAction timed_action_from_json(const Json& json) {
  const Action action{static_cast<ActionKind>(json.at(0).get<int>()), json.at(1).get<int>(), json.at(2).get<int>(), json.at(3).get<int>()};
  return {action, json.at(4).get<double>(), json.at(5).get<double>()};
}

}  // namespace

PipelineMeter::PipelineMeter(PipelineRunner& pipeline, Group group) : pipeline_(pipeline), group_(std::move(group)) {}
PipelineMeter::~PipelineMeter() { pipeline_.record(nullptr); }

void PipelineMeter::step(const std::function<void()>& run) {
  actions_.clear();
  pipeline_.record(&actions_);
  group_.barrier();
  const auto start = Clock::now();
  run();
  group_.barrier();
  step_seconds_.push_back(seconds_since(start));
  pipeline_.record(nullptr);
  std::erase_if(actions_, [](const TimedAction& timed) { return !is_work(timed.action); });
  Span span{std::numeric_limits<double>::infinity(), 0, 0};
  for (const TimedAction& timed : actions_) {
    span.start = std::min(span.start, timed.start);
    span.end = std::max(span.end, timed.end);
    span.busy += timed.end - timed.start;
  }
  spans_.push_back(span);
}

PipelineMeter::Result PipelineMeter::result() {
  Json own{{"steps", step_seconds_}, {"spans", Json::array()}, {"last", Json::array()}};
  for (const Span& span : spans_) own["spans"].push_back({span.start, span.end, span.busy});
  for (const TimedAction& timed : actions_) own["last"].push_back(to_json(timed));
  std::vector<Json> ranks;
  for (const std::string& text : group_.all_gather_text(own.dump(), "the times of the pipeline's actions"))
    ranks.push_back(Json::parse(text));

  Result result;
  result.step_seconds = median(ranks.front().at("steps").get<std::vector<double>>());
  std::vector<double> bubbles;
  for (size_t step = 0; step < spans_.size(); ++step) {
    double start = std::numeric_limits<double>::infinity(), end = 0, busy = 0;
    for (const Json& rank : ranks) {
      const Json& span = rank.at("spans").at(step);
      start = std::min(start, span.at(0).get<double>());
      end = std::max(end, span.at(1).get<double>());
      busy += span.at(2).get<double>();
    }
    bubbles.push_back(1 - busy / (static_cast<double>(ranks.size()) * (end - start)));
    if (step + 1 < spans_.size()) continue;
    result.last.makespan = end - start;
    result.last.bubble = bubbles.back();
    for (const Json& rank : ranks) {
      result.last.busy.push_back(rank.at("spans").at(step).at(2).get<double>());
      std::vector<TimedAction>& actions = result.last.ranks.emplace_back();
      for (const Json& one : rank.at("last")) {
        TimedAction timed = timed_action_from_json(one);
        timed.start -= start, timed.end -= start;
        actions.push_back(timed);
      }
    }
  }
  result.bubble = median(bubbles);
  return result;
}

// The machine that a model is measured on, by all ranks at once.
//
//   links       all-reduce, reduce-scatter and all-gather at 4 KiB and 4 MiB, the median of nine after two, for the latency and rate of
//               exchange_seconds(); a transfer likewise
//   memory      the rate of w += g, three arrays of 16 MiB
//   rates       a product of two matrices of 512 x 512 in each precision
//
// Cost: about a hundred exchanges, tenths of a second.

namespace {

constexpr int64_t kSmallBytes = 4 << 10, kLargeBytes = 4 << 20;

/// Seconds of one call among all ranks: the median of nine after two that warm up.
double exchange_time(Group& group, const std::function<void()>& call) {
  std::vector<double> times;
  for (int i = 0; i < 11; ++i) {
    group.barrier();
    const double start = steady_seconds();
    call();
    const double time = steady_seconds() - start;
    if (i >= 2) times.push_back(time);
  }
  return median(times);
}

/// Latency and rate of an exchange that takes `latency_times` x latency + `byte_times` x bytes / rate.
Link link_of(double small, double large, double latency_times, double byte_times) {
  Link link;
  const double a_byte = std::max(1e-12, (large - small) / static_cast<double>(kLargeBytes - kSmallBytes));
  link.bytes_per_second = byte_times / a_byte;
  link.latency_seconds = std::max(0.0, small - a_byte * static_cast<double>(kSmallBytes)) / latency_times;
  return link;
}

/// Half of a round trip between the first two ranks.
Link measure_hand_over(Group& group) {
  TensorChannels channels(group);
  std::array<double, 2> seconds{};
  for (const int large : {0, 1}) {
    const at::Tensor mine = at::zeros({large ? kLargeBytes : kSmallBytes}, at::kByte);
    seconds[static_cast<size_t>(large)] = 0.5 * exchange_time(group, [&] {
                                            if (group.rank() > 1) return;
                                            if (group.rank() == 0) channels.send(1, {mine}, "a measurement");
                                            channels.receive(1 - group.rank(), "a measurement");
                                            if (group.rank() == 1) channels.send(0, {mine}, "a measurement");
                                          });
    channels.flush();
  }
  return link_of(seconds[0], seconds[1], 1, 1);
}

Links measure_links(Group& group) {
  const int n = group.size();
  Links links;
  for (Link& link : links.by_exchange) link = {1e-6, 0, 1e10};
  if (n == 1) return links;
  const double doublings = std::log2(n), share = (n - 1.0) / n;
  std::map<Exchange, std::array<double, 2>> seconds;
  for (const int large : {0, 1}) {
    const int64_t count = (large ? kLargeBytes : kSmallBytes) / 4 / n * n;
    at::Tensor whole = group.allocate(count, at::kFloat), part = at::zeros({count / n}, at::kFloat);
    seconds[Exchange::kAllReduce][large] = exchange_time(group, [&] { group.all_reduce_sum(whole, "a measurement"); });
    seconds[Exchange::kReduceScatter][large] =
        exchange_time(group, [&] { group.start_reduce_scatter_sum(part, whole, "a measurement")->wait(); });
    seconds[Exchange::kAllGather][large] = exchange_time(group, [&] { group.start_all_gather(whole, part, "a measurement")->wait(); });
  }
  for (const auto& [kind, both] : seconds)
    links.by_exchange[static_cast<size_t>(kind)] = link_of(both[0], both[1], doublings, kind == Exchange::kAllReduce ? 2 * share : share);
  links.by_exchange[static_cast<size_t>(Exchange::kHandOver)] = measure_hand_over(group);
  return links;
}

}  // namespace

Cluster measure_machine(Group& group, const MachineToMeasure& what) {
  Cluster cluster;
  cluster.name = concat("this machine, ", group.size(), group.size() == 1 ? " worker" : " workers");
  cluster.source = "measured by cohort";
  // 90 % of the forecasts that bench/forecast_layouts.py compared with trainings were off by less than a quarter.
  cluster.forecast_low = 0.8, cluster.forecast_high = 1.25;
  cluster.inside = cluster.across = measure_links(group);
  cluster.shared_memory = group.backend_name() == "shm";
  cluster.hosts = {{1, group.size(), 0}};
  DeviceKind& device = cluster.devices.emplace_back();
  device.name = what.device;
  device.source =
      concat(at::get_num_threads(), at::get_num_threads() == 1 ? " thread" : " threads", " beside ", group.size() - 1, " other ranks");
  device.memory_bytes = available_memory_bytes() / group.size();
  device.allocator_overhead = 0.03;  // Small allocations outside of layers; from bench/ladder.py.
  device.reserved_bytes = std::min(what.reserved_bytes, device.memory_bytes / 2);
  at::Tensor weights = at::zeros({kLargeBytes}, at::kFloat), gradients = at::ones({kLargeBytes}, at::kFloat);
  device.memory_bytes_per_second = 3.0 * 4 * kLargeBytes / exchange_time(group, [&] { weights.add_(gradients, -0.1); });
  constexpr int64_t kSide = 512;
  for (const std::string& precision : what.precisions) {
    const at::ScalarType type = precision == "fp32" ? at::kFloat : precision == "bf16" ? at::kBFloat16 : at::kHalf;
    const at::Tensor square = at::ones({kSide, kSide}, type);
    device.rates.push_back({precision, 2.0 * kSide * kSide * kSide / exchange_time(group, [&] { at::mm(square, square); })});
  }
  return cluster;
}

// Speed classes: ranks are sorted from the fastest; each joins the previous class unless it is slower than its fastest rank in most rounds.
// So ranks of a class are within kSlower of each other, and noise, which hits different ranks in different rounds, makes no class.

namespace {

/// Ratios of the seconds of two ranks, for each size and round.
std::vector<double> ratios(const std::vector<std::vector<double>>& of, const std::vector<std::vector<double>>& to) {
  std::vector<double> out;
  for (size_t size = 0; size < of.size(); ++size)
    for (size_t round = 0; round < of[size].size(); ++round)
      if (to[size][round] > 0) out.push_back(of[size][round] / to[size][round]);
  return out;
}

bool is_slower(const std::vector<double>& all) {
  const auto slower = std::count_if(all.begin(), all.end(), [](double ratio) { return ratio > SpeedClasses::kSlower; });
  return !all.empty() && static_cast<double>(slower) >= SpeedClasses::kMostRounds * static_cast<double>(all.size());
}

}  // namespace

SpeedClasses::SpeedClasses(const std::vector<std::vector<std::vector<double>>>& seconds) : of_rank_(seconds.size(), 0) {
  std::vector<double> slower_than_first;
  for (const auto& rank : seconds) slower_than_first.push_back(median(ratios(rank, seconds.front())));
  std::vector<size_t> order(seconds.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return slower_than_first[a] < slower_than_first[b]; });
  std::vector<size_t> fastest_of;  // The fastest rank of each class, fastest class first.
  std::vector<int> found(seconds.size());
  for (const size_t rank : order) {
    if (fastest_of.empty() || is_slower(ratios(seconds[rank], seconds[fastest_of.back()]))) fastest_of.push_back(rank);
    found[rank] = static_cast<int>(fastest_of.size()) - 1;
  }
  std::vector<int> number(fastest_of.size(), -1);
  for (size_t rank = 0; rank < seconds.size(); ++rank) {
    int& its = number[static_cast<size_t>(found[rank])];
    if (its < 0) {
      its = num_classes();
      first_rank_.push_back(static_cast<int>(rank));
      times_slower_.push_back(std::max(1.0, median(ratios(seconds[rank], seconds[order.front()]))));
    }
    of_rank_[rank] = its;
  }
}

namespace {

void append_speed(DeviceKind& device, double times_slower) {
  if (times_slower > SpeedClasses::kSlower)
    device.source += concat("; takes ", std::round(10 * times_slower) / 10, " times as long as the fastest rank");
}

}  // namespace

void divide_by_speed(ModelProfile& profile, const std::vector<std::vector<double>>& whole_seconds, Group& group) {
  std::vector<std::vector<std::vector<double>>> seconds;
  for (const std::string& text : group.all_gather_text(Json(whole_seconds).dump(), "the ranks' seconds"))
    seconds.push_back(Json::parse(text).get<std::vector<std::vector<double>>>());
  const SpeedClasses speeds(seconds);
  const int mine = speeds.of_rank()[static_cast<size_t>(group.rank())];
  std::vector<std::string> others;
  if (speeds.num_classes() > 1) {
    const bool speaks = mine > 0 && speeds.rank_of(mine) == group.rank();
    others = group.all_gather_text(speaks ? to_json(profile).dump() : "", "profiles of ranks of another speed");
  }
  if (group.rank() > 0) {
    profile.points.clear();
    return;
  }
  Cluster& machine = profile.measured_on.front();
  const std::string name = machine.devices.front().name;
  if (speeds.num_classes() > 1) append_speed(machine.devices.front(), speeds.times_slower(0));
  for (int one = 1; one < speeds.num_classes(); ++one) {
    ModelProfile other = model_profile_from_json(Json::parse(others[static_cast<size_t>(speeds.rank_of(one))]), "what a rank measured");
    DeviceKind device = std::move(other.measured_on.front().devices.front());
    device.name = concat(name, "-speed-", one + 1);
    append_speed(device, speeds.times_slower(one));
    for (ProfilePoint& point : other.points) {
      point.device = device.name;
      profile.points.push_back(std::move(point));
    }
    for (CodingCost& coding : other.codings) {
      coding.device = device.name;
      profile.codings.push_back(std::move(coding));
    }
    machine.devices.push_back(std::move(device));
  }
  if (speeds.num_classes() > 1) machine.hosts.front().mixed = speeds.of_rank();
}

}  // namespace cohort
