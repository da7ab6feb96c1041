// Forecasts one training step: seconds and bytes of every worker of the pipeline.
//
//   1. Layers take what the profile says for their device, precision, tensor degree and micro-batch. Under tp a divided layer all-reduces
//      its output in forward and a gradient of that size in backward; a recomputed layer runs its forward, exchanges inside, once more in
//      the input part of its backward.
//   2. One worker: a step is m x a micro-batches, one after the other. Several: the schedule that ranks would execute is simulated with
//      these costs, with transfers inside or between hosts, a times. Beyond kSimulated actions two shorter
//      schedules are simulated and extrapolated, because a steady pipeline is periodic.
//   3. Gradients and weights over the data axis, and the update: exchange_forecast.cpp.
//   4. Bytes: memory.cpp for weights, gradients and optimizer; the stash of the schedule, action by action; a copy of the weights in
//      half precision during a step; the overhead of the allocator.
//
// A step ends with its slowest worker. Cost: O(layers + edges) and the simulation, which is linear in its actions.
// Not modelled: links that several exchanges share at once, seconds of evaluation, reading of data.
#include "cohort/plan/cost/step_forecast.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <set>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/job/specs/devices.h"
#include "cohort/plan/cost/memory.h"
#include "cohort/plan/cost/pipeline_forecast.h"
#include "cohort/schedule/scheduler.h"
#include "cohort/schedule/stage_graph.h"

namespace cohort {
namespace {

constexpr int64_t kSimulated = 1 << 16;  // Compute actions.

int num_micro_steps(const Layout& layout) { return std::max(1, layout.accumulate); }

/// Seconds and bytes of layers on one kind of device.
struct LayersOfKind {
  Profile profile;  ///< With the exchanges of tp included.
  std::vector<double> tensor_seconds;
};

class Forecast {
 public:
  Forecast(const PlanProblem& problem, const Candidate& candidate)
      : problem_(problem),
        candidate_(candidate),
        layout_(candidate.layout),
        places_(layout_, problem.cluster),
        micro_batch_(candidate.micro_batch(problem.global_batch)) {
    check();
    if (layout_.pp > 1) {
      const Profile shape = profile_at(problem.profile, key(problem.cluster.hosts.front().device));
      graph_ = cut_profile(shape, candidate.stages.stage_of);
      check_stages();
    } else {
      graph_.stage_of.assign(problem.profile.layers.size(), 0);
      graph_.layers.resize(1);
      for (size_t layer = 0; layer < problem.profile.layers.size(); ++layer) graph_.layers[0].push_back(static_cast<int>(layer));
    }
    stages_of_worker_.resize(static_cast<size_t>(places_.num_workers()));
    for (int stage = 0; stage < graph_.num_stages(); ++stage) stages_of_worker_[static_cast<size_t>(worker_of(stage))].push_back(stage);
    make_stages();
  }

  StepForecast run(bool with_timeline) {
    StepForecast out;
    const int64_t micro_steps = num_micro_steps(layout_);
    if (layout_.pp == 1) {
      const double one = costs_.forward[0] + costs_.backward_input[0] + costs_.backward_weight[0];
      out.pipeline_seconds = static_cast<double>(micro_steps * layout_.microbatches) * one;
    } else {
      simulate_pipeline(with_timeline, out);
      out.pipeline_seconds *= static_cast<double>(micro_steps);
    }
    double low = 0, high = 0, middle = 0;
    for (int worker = 0; worker < places_.num_workers(); ++worker) {
      out.workers.push_back(forecast_worker(worker));
      const WorkerForecast& its = out.workers.back();
      out.step_seconds = std::max(out.step_seconds, out.pipeline_seconds + its.exposed_seconds + its.update_seconds);
      const auto [its_low, its_high] = interval_at(problem_.profile, key(kind_of_worker_[static_cast<size_t>(worker)]));
      const double busy = its.forward_seconds + its.backward_seconds;
      low += busy * its_low, high += busy * its_high, middle += busy;
    }
    for (WorkerForecast& its : out.workers) {
      const double busy = its.forward_seconds + its.backward_seconds + its.exposed_seconds + its.update_seconds;
      its.idle_seconds = std::max(0.0, out.step_seconds - busy);
      out.fits = out.fits && its.memory.total() <= its.memory_limit;
    }
    // Calibrated errors include the variation of repeats.
    const ErrorInterval* const kept = problem_.intervals.of(layout_, precision_of(layout_));
    out.low_seconds = out.step_seconds * (kept ? kept->low : problem_.cluster.forecast_low * (middle > 0 ? low / middle : 1));
    out.high_seconds = out.step_seconds * (kept ? kept->high : problem_.cluster.forecast_high * (middle > 0 ? high / middle : 1));
    return out;
  }

 private:
  ProfileKey key(int kind, int64_t micro_batch) const {
    return {problem_.cluster.devices[static_cast<size_t>(kind)].name, precision_of(layout_), layout_.tp, micro_batch};
  }
  ProfileKey key(int kind) const { return key(kind, micro_batch_); }

  int worker_of(int stage) const {
    return candidate_.stages.worker_of_stage.empty() ? 0 : candidate_.stages.worker_of_stage[static_cast<size_t>(stage)];
  }

  void check() const {
    const int64_t pieces = int64_t{num_pipelines(layout_)} * num_micro_steps(layout_) * layout_.microbatches;
    if (pieces > problem_.global_batch)
      fail(ErrorCode::kBadInput, "a global batch of ", problem_.global_batch, " has no sample for each of ", pieces, " pieces");
    if (!candidate_.recompute.empty() && candidate_.recompute.size() != problem_.profile.layers.size())
      fail(ErrorCode::kBadInput, "recompute flags for ", candidate_.recompute.size(), " layers, and the profile has ",
           problem_.profile.layers.size());
  }

  void check_stages() const {
    const std::vector<int>& workers = candidate_.stages.worker_of_stage;
    if (workers.size() != static_cast<size_t>(graph_.num_stages()))
      fail(ErrorCode::kBadInput, "workers of ", workers.size(), " stages, and there are ", graph_.num_stages());
    for (const int worker : workers)
      if (worker < 0 || worker >= places_.num_workers())
        fail(ErrorCode::kBadInput, "a stage is on worker ", worker, " of ", places_.num_workers());
  }

  /// Layer seconds on a kind of device, exchanges of tp inside.
  LayersOfKind layers_of(int kind, bool tensor_leaves_host, int64_t micro_batch) const {
    LayersOfKind out{profile_at(problem_.profile, key(kind, micro_batch)), {}};
    out.tensor_seconds.assign(out.profile.layers.size(), 0);
    if (layout_.tp == 1) return out;
    for (size_t layer = 0; layer < out.profile.layers.size(); ++layer) {
      const ProfiledLayer& shape = problem_.profile.layers[layer];
      if (shape.num_tensor_exchanges == 0 || shape.tensor_parts % layout_.tp != 0) continue;
      LayerProfile& cost = out.profile.layers[layer];
      const double seconds = shape.num_tensor_exchanges * exchange_seconds(problem_.cluster, Exchange::kAllReduce, layout_.tp,
                                                                           tensor_leaves_host, static_cast<double>(cost.output_bytes));
      cost.forward_seconds += seconds;
      cost.backward_input_seconds += seconds;
      out.tensor_seconds[layer] = 2 * seconds;
    }
    return out;
  }

  bool recomputes(int layer) const { return !candidate_.recompute.empty() && candidate_.recompute[static_cast<size_t>(layer)]; }

  void make_stages() {
    const auto num_stages = static_cast<size_t>(graph_.num_stages()), num_workers = static_cast<size_t>(places_.num_workers());
    costs_.forward.resize(num_stages), costs_.backward_input.resize(num_stages), costs_.backward_weight.resize(num_stages);
    tensor_seconds_.resize(num_stages);
    kind_of_worker_.resize(num_workers), layers_of_worker_.resize(num_workers);
    std::vector<std::pair<int, bool>> made_for;  // Workers of the same kind have the same costs.
    handovers_ = Handovers(graph_);
    for (int worker = 0; worker < places_.num_workers(); ++worker) {
      const bool leaves = places_.tensor_leaves_host(worker);
      double slowest = -1;
      for (const auto& [kind, micro_batch] : kinds_and_batches(worker)) {
        const auto same = std::find(made_for.begin(), made_for.end(), std::pair{kind, leaves});
        const bool is_new = same == made_for.end() || micro_batch != micro_batch_;
        const auto layers = is_new ? std::make_shared<const LayersOfKind>(layers_of(kind, leaves, micro_batch))
                                   : layers_of_worker_[static_cast<size_t>(same - made_for.begin())];
        const double seconds = seconds_of(worker, *layers);
        if (seconds <= slowest) continue;
        slowest = seconds;
        kind_of_worker_[static_cast<size_t>(worker)] = kind;
        layers_of_worker_[static_cast<size_t>(worker)] = layers;
      }
      made_for.emplace_back(kind_of_worker_[static_cast<size_t>(worker)], leaves);
      const LayersOfKind& its = *layers_of_worker_[static_cast<size_t>(worker)];
      for (const int stage : stages_of_worker_[static_cast<size_t>(worker)]) {
        const std::vector<int>& layers = graph_.layers[static_cast<size_t>(stage)];
        set_costs(costs_, stage, work_of_stage(its.profile, layers, candidate_.recompute), handovers_.receives(stage));
        for (const int layer : layers)
          tensor_seconds_[static_cast<size_t>(stage)] += its.tensor_seconds[static_cast<size_t>(layer)] * (recomputes(layer) ? 1.5 : 1);
      }
    }
    costs_.transfer = [this](int from, int to) { return transfer_seconds(from, to); };
  }

  /// Shares of the batch differ by rank where there is one worker.
  std::vector<std::pair<int, int64_t>> kinds_and_batches(int worker) const {
    std::vector<std::pair<int, int64_t>> out;
    if (layout_.shares.empty() || layout_.shares == "equal" || layout_.is_model_parallel()) {
      for (const int kind : places_.kinds(worker)) out.emplace_back(kind, micro_batch_);
      return out;
    }
    const std::vector<double> weights = parse_shares(layout_.shares).of(layout_.dp);
    double sum = 0;
    for (const double weight : weights) sum += weight;
    const double per_micro_step = static_cast<double>(problem_.global_batch) / num_micro_steps(layout_);
    for (int data = 0; data < layout_.dp; ++data) {
      const double share = per_micro_step * weights[static_cast<size_t>(data)] / sum;
      out.emplace_back(problem_.cluster.device_of_rank(places_.rank(data, 0, 0)), largest_micro_batch(share));
    }
    sort_unique(out);
    return out;
  }

  double seconds_of(int worker, const LayersOfKind& layers) const {
    double seconds = 0;
    for (const int stage : stages_of_worker_[static_cast<size_t>(worker)])
      for (const int layer : graph_.layers[static_cast<size_t>(stage)])
        seconds += layers.profile.layers[static_cast<size_t>(layer)].seconds();
    return seconds;
  }

  double transfer_seconds(int from, int to) const {
    const LayersOfKind& layers = *layers_of_worker_[static_cast<size_t>(worker_of(std::min(from, to)))];
    const int64_t bytes = handovers_.bytes(from, to, layers.profile);
    const bool leaves = places_.handover_leaves_host(worker_of(from), worker_of(to));
    return exchange_seconds(problem_.cluster, Exchange::kHandOver, 2, leaves, static_cast<double>(bytes));
  }

  Schedule schedule_for(int num_micro_batches) const {
    StageSeconds seconds;
    if (order_follows_costs(problem_.profile.tied, layout_, candidate_.stages))
      seconds = {costs_.forward, costs_.backward_input, costs_.backward_weight};
    return schedule_of(layout_, graph_, candidate_.stages.worker_of_stage, seconds, num_micro_batches);
  }

  void simulate_pipeline(bool with_timeline, StepForecast& out) {
    const int m = layout_.microbatches, workers = places_.num_workers();
    const bool is_file = layout_.schedule.ends_with(".json");
    const int period = std::max(1, workers);
    if (with_timeline || is_file || int64_t{2} * m * graph_.num_stages() <= kSimulated || m <= 6 * period) {
      const Schedule schedule = schedule_for(m);
      Timeline timeline = simulate(schedule, costs_);
      out.pipeline_seconds = timeline.makespan;
      out.bubble = timeline.bubble;
      stash_bytes_ = peak_stash(schedule);
      if (with_timeline) out.timeline = std::move(timeline);
      return;
    }
    const int longer = 5 * period + m % period, shorter = longer - period;
    const Schedule two[2] = {schedule_for(shorter), schedule_for(longer)};
    const Timeline lines[2] = {simulate(two[0], costs_), simulate(two[1], costs_)};
    const double further = static_cast<double>(m - longer) / period;
    out.pipeline_seconds = lines[1].makespan + further * (lines[1].makespan - lines[0].makespan);
    double busy = 0;
    for (size_t rank = 0; rank < lines[1].busy.size(); ++rank)
      busy += lines[1].busy[rank] + further * (lines[1].busy[rank] - lines[0].busy[rank]);
    out.bubble = 1 - busy / (out.pipeline_seconds * static_cast<double>(lines[1].busy.size()));
    const std::vector<int64_t> before = peak_stash(two[0]);
    stash_bytes_ = peak_stash(two[1]);
    for (size_t worker = 0; worker < stash_bytes_.size(); ++worker)
      stash_bytes_[worker] += static_cast<int64_t>(further * static_cast<double>(stash_bytes_[worker] - before[worker]));
  }

  std::vector<StageStash> stage_stash() const {
    std::vector<StageStash> out(static_cast<size_t>(graph_.num_stages()));
    for (int worker = 0; worker < places_.num_workers(); ++worker) {
      const std::vector<StageStash> all =
          stash_of_stages(layers_of_worker_[static_cast<size_t>(worker)]->profile, graph_, candidate_.recompute);
      for (const int stage : stages_of_worker_[static_cast<size_t>(worker)])
        out[static_cast<size_t>(stage)] = all[static_cast<size_t>(stage)];
      if (!problem_.cluster.is_mixed()) return all;
    }
    return out;
  }

  std::vector<int64_t> peak_stash(const Schedule& schedule) {
    if (stash_.empty()) stash_ = stage_stash();
    return peak_stash_bytes(schedule, stash_, candidate_.stages.worker_of_stage);
  }

  /// Sums over the layers of a worker, divided by tp where that divides a layer.
  struct LayerTotals {
    int64_t trained_bytes = 0, frozen_bytes = 0, buffer_bytes = 0;
    int64_t largest_bytes = 0;      ///< The trained weights of the largest layer.
    std::set<int64_t> layer_bytes;  ///< Each size of a layer once.
  };
  LayerTotals totals_of(const std::vector<int>& layers) const {
    LayerTotals out;
    for (const int layer : layers) {
      const ProfiledLayer& shape = problem_.profile.layers[static_cast<size_t>(layer)];
      const int64_t parts = layout_.tp > 1 && shape.tensor_parts % layout_.tp == 0 ? layout_.tp : 1;
      const int64_t bytes = (4 * shape.num_trained + parts - 1) / parts;
      out.trained_bytes += bytes;
      out.frozen_bytes += (4 * shape.num_frozen + parts - 1) / parts;
      out.buffer_bytes += shape.buffer_bytes;
      out.largest_bytes = std::max(out.largest_bytes, bytes);
      if (bytes > 0) out.layer_bytes.insert(bytes);
    }
    return out;
  }

  int64_t whole_model_bytes() const {
    int64_t elements = 0, buffers = 0;
    for (const ProfiledLayer& layer : problem_.profile.layers)
      elements += layer.num_trained + layer.num_frozen, buffers += layer.buffer_bytes;
    return 4 * elements + buffers;
  }

  bool is_measured_here() const { return !problem_.profile.measured_on.empty(); }

  bool has_one_copy(int worker) const {
    return problem_.cluster.shared_memory && !problem_.private_weights && places_.degree(worker) > 1 && layout_.zero == 0 &&
           !places_.data_leaves_host(worker) && layout_.compress == "none";
  }

  const DeviceKind& device_of(int worker) const {
    return problem_.cluster.devices[static_cast<size_t>(kind_of_worker_[static_cast<size_t>(worker)])];
  }

  int num_passes() const { return num_micro_steps(layout_) * layout_.microbatches; }
  /// Replicas of a stage that take micro-batches in turn have a share of them each.
  double passes_of(int worker) const {
    return layout_.is_even() ? num_passes() : static_cast<double>(num_passes()) / places_.degree(worker);
  }

  ExchangeForecast exchange_of(int worker, int64_t trained_bytes, double forward_seconds, double backward_seconds) const {
    const DeviceKind& device = device_of(worker);
    DataExchange exchange;
    exchange.num_ranks = places_.degree(worker);
    exchange.leaves_host = places_.data_leaves_host(worker);
    exchange.zero = layout_.zero;
    exchange.compress = layout_.compress;
    exchange.coding = find_coding(problem_.profile, device.name, layout_.compress);
    exchange.one_copy = has_one_copy(worker);
    exchange.overlaps = layout_.pp == 1;
    exchange.hides = exchange.leaves_host || !is_measured_here();  // Ranks of this host compute on all cores.
    exchange.num_backwards = num_passes();
    exchange.num_forwards = static_cast<int>(std::ceil(passes_of(worker)));
    exchange.gradient_bytes = exchange.weight_bytes = trained_bytes;
    exchange.bucket_bytes = problem_.bucket_bytes;
    exchange.optimizer_arrays = problem_.optimizer_arrays;
    exchange.forward_seconds = forward_seconds;
    exchange.backward_seconds = backward_seconds;
    exchange.memory_bytes_per_second = device.memory_bytes_per_second;
    return forecast_exchange(problem_.cluster, exchange);
  }

  /// Evaluation and text sample, which runs on this machine have beside their steps.
  void add_evaluation(int worker, const std::vector<int>& layers, RankMemoryShape& shape) const {
    const int kind = kind_of_worker_[static_cast<size_t>(worker)];
    const int64_t samples =
        evaluation_samples(problem_.global_batch, num_micro_steps(layout_), micro_batch_, problem_.memory_limit_bytes > 0);
    shape.evaluation_bytes = samples == micro_batch_
                                 ? evaluation_bytes(layers_of_worker_[static_cast<size_t>(worker)]->profile, layers, layout_.tp)
                                 : evaluation_bytes(profile_at(problem_.profile, key(kind, samples)), layers, layout_.tp);
    shape.has_part = layout_.is_model_parallel();
    if (!problem_.writes_text || worker > 0) return;  // Rank 0 writes it, and is of the first worker.
    std::vector<int> all(problem_.profile.layers.size());
    std::iota(all.begin(), all.end(), 0);
    ProfileKey one = key(kind, 1);
    one.tp = 1;
    if (!has_points(problem_.profile, one)) one.tp = layout_.tp;
    shape.text_sample_bytes = forward_only_bytes(profile_at(problem_.profile, one), all) + (shape.has_part ? whole_model_bytes() : 0);
  }

  StepMemory memory_of(int worker, const LayerTotals& totals, const std::vector<int>& layers) {
    const auto at = static_cast<size_t>(worker);
    RankMemoryShape shape;
    shape.strategy.num_ranks = places_.degree(worker);
    shape.strategy.zero = shape.strategy.num_ranks > 1 ? layout_.zero : 0;
    shape.strategy.one_copy = has_one_copy(worker);
    shape.strategy.optimizer_arrays = problem_.optimizer_arrays;
    shape.strategy.trained_bytes = totals.trained_bytes;
    shape.strategy.frozen_bytes = totals.frozen_bytes;
    shape.strategy.largest_unit_bytes = std::min(totals.trained_bytes, std::max(problem_.bucket_bytes, totals.largest_bytes));
    shape.strategy.holds_gradients = layout_.pp > 1;
    shape.buffer_bytes = totals.buffer_bytes;
    shape.is_half = precision_of(layout_) != "fp32";
    shape.adds_gradients = num_passes() > 1;
    shape.largest_layer_bytes = totals.largest_bytes;
    shape.distinct_layer_bytes = std::accumulate(totals.layer_bytes.begin(), totals.layer_bytes.end(), int64_t{0});
    shape.counts_one_copy_whole = problem_.memory_limit_bytes > 0;
    if (stash_.empty()) stash_ = stage_stash();
    shape.stash = layout_.pp > 1 ? stash_bytes_[at] : stash_[0].micro_batch_bytes;
    for (const int stage : stages_of_worker_[at]) {
      shape.recompute = std::max(shape.recompute, stash_[static_cast<size_t>(stage)].recompute_bytes);
      shape.working = std::max(shape.working, stash_[static_cast<size_t>(stage)].working_bytes);
    }
    if (is_measured_here()) {
      shape.whole_model_bytes = whole_model_bytes();
      if (layout_.num_ranks() > 1) shape.num_groups = layout_.is_model_parallel() ? 2 : 1;
      add_evaluation(worker, layers, shape);
    }
    StepMemory memory = rank_memory(shape);
    const DeviceKind& device = device_of(worker);
    memory.overhead =
        device.reserved_bytes + static_cast<int64_t>(std::ceil(device.allocator_overhead * static_cast<double>(memory.total())));
    return memory;
  }

  WorkerForecast forecast_worker(int worker) {
    const auto at = static_cast<size_t>(worker);
    WorkerForecast out;
    out.num_ranks = places_.degree(worker) * layout_.tp;
    out.device = device_of(worker).name;
    double forward = 0, backward = 0, tensor = 0;
    for (const int stage : stages_of_worker_[at]) {
      const auto s = static_cast<size_t>(stage);
      out.layers.insert(out.layers.end(), graph_.layers[s].begin(), graph_.layers[s].end());
      forward += costs_.forward[s];
      backward += costs_.backward_input[s] + costs_.backward_weight[s];
      tensor += tensor_seconds_[s];
    }
    std::sort(out.layers.begin(), out.layers.end());
    const double passes = passes_of(worker);
    out.forward_seconds = passes * forward, out.backward_seconds = passes * backward, out.tensor_exchange_seconds = passes * tensor;
    const LayerTotals totals = totals_of(out.layers);
    const ExchangeForecast exchange = exchange_of(worker, totals.trained_bytes, forward, backward);
    out.exchange_seconds = exchange.exchange_seconds, out.exposed_seconds = exchange.exposed_seconds;
    out.update_seconds = exchange.update_seconds;
    out.memory = memory_of(worker, totals, out.layers);
    out.memory_limit = device_of(worker).memory_bytes;
    if (problem_.memory_limit_bytes > 0) out.memory_limit = std::min(out.memory_limit, problem_.memory_limit_bytes);
    return out;
  }

  const PlanProblem& problem_;
  const Candidate& candidate_;
  const Layout& layout_;
  MeshPlacement places_;
  int64_t micro_batch_;
  StageGraph graph_;
  std::vector<std::vector<int>> stages_of_worker_;
  std::vector<int> kind_of_worker_;
  std::vector<std::shared_ptr<const LayersOfKind>> layers_of_worker_;
  Handovers handovers_;
  StageCosts costs_;
  std::vector<double> tensor_seconds_;  // Per stage and micro-batch.
  std::vector<StageStash> stash_;
  std::vector<int64_t> stash_bytes_;  // Peak per worker.
};

}  // namespace

int64_t Candidate::micro_batch(int64_t global_batch) const {
  const int64_t pieces = int64_t{num_pipelines(layout)} * num_micro_steps(layout) * layout.microbatches;
  return std::max<int64_t>(1, (global_batch + pieces - 1) / pieces);
}

int64_t StepForecast::peak_memory_bytes() const {
  int64_t peak = 0;
  for (const WorkerForecast& worker : workers) peak = std::max(peak, worker.memory.total());
  return peak;
}

const WorkerForecast& StepForecast::tightest_worker() const {
  return *std::max_element(workers.begin(), workers.end(), [](const WorkerForecast& a, const WorkerForecast& b) {
    return a.memory.total() - a.memory_limit < b.memory.total() - b.memory_limit;
  });
}

StepForecast forecast_step(const PlanProblem& problem, const Candidate& candidate, bool with_timeline) {
  return Forecast(problem, candidate).run(with_timeline);
}

}  // namespace cohort
