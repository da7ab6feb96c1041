// The measurement behind `cohort plan` without --cluster, and behind --layout auto.
//
// For each number of workers, that many ranks measure concurrently, between barriers, because concurrent ranks share caches, memory and
// heat as in training. A rank has as many threads as a rank of `train`.
//
//   1. Micro-batch sizes: the global batch, its share for each worker, and quarters of the least down to 1.
//   2. A size is measured in kRounds rounds: in each the layers one by one (profile_layers.cpp), then the whole model's forward and
//      backward at once. A layer's cost is the median of the rounds, its interval their 5th to 95th percentile as shares of it.
//   3. The whole model differs from the sum of its layers (autograd, warm caches), so all layers of a size are scaled by the ratio of the
//      medians. Reading a batch is added to the first layer.
//   4. Under tp the layers are divided (tensor/shard_graph.h) and measured with their exchanges inside, in lockstep.
//   5. The machine (measure_machine.h), and the resident bytes besides tensors: the peak after a share of the batch went through the model,
//      less the forecast of that.
//   6. Where plans may compress gradients: the seconds of each compression (run_advice.h).
//   7. Ranks that are not equally fast (measure_machine.h; --inject slow makes some) become kinds of device with points of their own.
//
// Cost: for each number of workers and precision about kRounds x 4 steps at each size; seconds for models whose step is below 0.1 s.

#include "cohort/tune/measure_model.h"
#include "cohort/comm/compute_threads.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <numeric>
#include <set>
#include <unordered_set>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/statistics.h"
#include "cohort/base/system/busy_elsewhere.h"
#include "cohort/base/system/machine.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"
#include "cohort/job/specs/injected_faults.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/models/graph/step_context.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/plan/cost/step_forecast.h"
#include "cohort/tensor/shard_graph.h"
#include "cohort/train/advice/run_advice.h"
#include "cohort/train/initial_model.h"
#include "cohort/train/model/batch_tensors.h"
#include "cohort/train/model/precision.h"
#include "cohort/train/model/profile_layers.h"
#include "cohort/tune/measure_machine.h"

namespace cohort {
namespace {

constexpr int kRounds = 4;
constexpr int64_t kBytesOfRun = 8 << 20;  // For evaluation, checkpoints, metrics and report; from bench/forecast_layouts.py.
constexpr double kRoundSeconds = 0.1;     // Sizes with longer rounds get three rounds.

struct Round {
  Profile layers;
  double whole_seconds = 0, read_seconds = 0;
};

double seconds_of(const std::function<void()>& call) {
  const double start = steady_seconds();
  call();
  return steady_seconds() - start;
}

class ModelMeter {
 public:
  ModelMeter(const Config& config, const DataSet& data, const MeasureModelOptions& options, Group& group)
      : config_(config),
        data_(data),
        options_(options),
        group_(group),
        device_(concat("rank-of-", group.size())),
        slow_factor_(injection_for_rank(parse_faults(config.inject), group.rank()).slow_factor) {}

  ModelProfile run() {
    const std::shared_ptr<LayerGraph> model = build();
    reserved_bytes_ = bytes_besides_tensors(*model);
    const int64_t share_peak_bytes = peak_of_share(*model);
    ModelProfile profile;
    profile.model = config_.model;
    profile.source = concat("measured on this machine, ", group_.size(), group_.size() == 1 ? " rank" : " ranks side by side");
    profile.sample_granularity = model->sample_granularity();
    describe_layers(*model, profile);
    for (const std::string& precision : options_.precisions) {
      measure_points(*model, precision, 1, nullptr, profile);
      if (&precision == &options_.precisions.front())
        reserved_bytes_ = std::max(reserved_bytes_, share_peak_bytes - tensor_bytes_of_share(profile));
    }
    for (int degree = 2; degree <= group_.size(); degree *= 2)
      if (group_.size() % degree == 0) measure_divided(degree, profile);
    if (options_.times_compression && group_.size() > 1) measure_codings(*model, profile);
    show("exchanges");
    const int64_t reserved_bytes = reserved_bytes_ + kBytesOfRun;
    profile.measured_on.push_back(
        measure_machine(group_, {.device = device_, .reserved_bytes = reserved_bytes, .precisions = options_.precisions}));
    divide_by_speed(profile, whole_seconds_, group_);
    return profile;
  }

 private:
  std::shared_ptr<LayerGraph> build() const { return initial_model(config_, data_.train->shape()).model; }

  /// Resident bytes of a rank that no tensor of the model explains, including libraries loaded by the first step.
  int64_t bytes_besides_tensors(LayerGraph& model) const {
    measure_whole(model, Precision::kFp32, 1);
    int64_t weights = 0;
    for (const at::Tensor& parameter : model.parameters()) weights += static_cast<int64_t>(parameter.nbytes());
    return std::max<int64_t>(0, peak_memory_bytes() - 2 * weights);  // Weights and gradients.
  }

  int64_t share() const {
    return std::max<int64_t>(1, std::min<int64_t>(config_.global_batch, data_.train->num_samples()) / group_.size());
  }

  /// Peak bytes after a rank's share of the batch went through the model, including kernels and scratch of that size.
  int64_t peak_of_share(LayerGraph& model) const {
    measure_whole(model, parse_precision(options_.precisions.front()), share());
    return peak_memory_bytes();
  }

  /// The part of peak_of_share() that a forecast accounts for.
  int64_t tensor_bytes_of_share(const ModelProfile& profile) const {
    Cluster alone;
    alone.devices = {{.name = device_, .memory_bytes = available_memory_bytes()}};
    alone.hosts = {{1, 1, 0, {}}};
    Candidate single;
    single.layout.precision = options_.precisions.front();
    const StepMemory memory = forecast_step({.profile = profile, .cluster = alone, .global_batch = share()}, single).workers.front().memory;
    return memory.total() - memory.buckets - memory.overhead;
  }

  /// Seconds of forward and backward of the whole model on the first samples, after one that warms up.
  double measure_whole(LayerGraph& model, Precision kind, int64_t size) const {
    std::vector<int64_t> indices(static_cast<size_t>(size));
    std::iota(indices.begin(), indices.end(), 0);
    Batch batch;
    data_.train->read(indices, batch);
    const BatchTensors tensors = as_tensors(batch, data_.train->shape());
    return whole_seconds(model, kind, tensors,
                         [&](const at::Tensor& output) { return mean_loss(model, for_loss(output), tensors.target); });
  }

  static double whole_seconds(LayerGraph& model, Precision kind, const BatchTensors& tensors,
                              const std::function<at::Tensor(const at::Tensor&)>& loss_of) {
    double seconds = 0;
    model.train();
    for (int pass = 0; pass < 2; ++pass)  // The first warms up.
      seconds = seconds_of([&] {
        at::Tensor loss;
        {
          const AutocastScope autocast(kind, c10::DeviceType::CPU);
          loss = loss_of(model.forward(tensors.input));
        }
        loss.backward();
      });
    for (const at::Tensor& parameter : model.parameters()) parameter.mutable_grad().reset();
    return seconds;
  }

  void describe_layers(const LayerGraph& model, ModelProfile& profile) const {
    std::unordered_set<const void*> counted;
    for (const LayerGraph::Layer& layer : model.layers()) {
      ProfiledLayer& its = profile.layers.emplace_back();
      its.name = layer.name, its.kind = layer.kind;
      if (!layer.module) continue;
      for (const at::Tensor& parameter : layer.module->parameters())
        if (counted.insert(parameter.unsafeGetTensorImpl()).second)
          (parameter.requires_grad() ? its.num_trained : its.num_frozen) += parameter.numel();
      for (const at::Tensor& buffer : layer.module->buffers()) its.buffer_bytes += static_cast<int64_t>(buffer.nbytes());
    }
  }

  std::vector<int64_t> sizes() const {
    const int64_t batch = std::min<int64_t>(config_.global_batch, data_.train->num_samples());
    std::set<int64_t> sizes = {1, batch, share()};
    for (int64_t size = batch / group_.size() / 4; size > 1 && sizes.size() < 6; size /= 4) sizes.insert(size);
    return {sizes.begin(), sizes.end()};
  }

  void measure_divided(int degree, ModelProfile& profile) {
    const std::shared_ptr<LayerGraph> model = build();
    const ShardPlan plan = plan_shards(*model, degree);
    if (plan.num_divided == 0) return;
    std::vector<int> ranks(static_cast<size_t>(degree));
    std::iota(ranks.begin(), ranks.end(), group_.rank() / degree * degree);
    Group tensor_group = degree == group_.size() ? group_ : group_.split(ranks, concat("tp=", degree));
    const ShardedModel sharded = shard_graph(*model, tensor_group);
    for (size_t i = 0; i < plan.placements.size(); ++i)
      if (plan.placements[i].placement != "whole") profile.layers[i].tensor_parts = std::lcm(profile.layers[i].tensor_parts, degree);
    for (const std::string& precision : options_.precisions)
      measure_points(*model, precision, degree, sharded.logits_divided ? &tensor_group : nullptr, profile);
  }

  void measure_points(LayerGraph& model, const std::string& precision, int tp, Group* divided_logits, ModelProfile& profile) {
    for (const int64_t size : sizes()) {
      show(concat(precision, tp > 1 ? concat(", tp=", tp) : "", ", ", size, size == 1 ? " sample" : " samples"));
      std::vector<Round> rounds;
      for (int round = 0; round < kRounds; ++round) {
        group_.barrier();
        rounds.push_back(measure_round(model, precision, size, divided_logits));
        // All ranks stop after the same round: exchanges inside of layers are collective.
        at::Tensor slowest = at::zeros({1}, at::kDouble);
        *slowest.mutable_data_ptr<double>() = rounds.back().whole_seconds;
        group_.all_reduce(slowest, Reduction::kMax, "the seconds of a round");
        if (*slowest.const_data_ptr<double>() > kRoundSeconds && round >= 2) break;
      }
      profile.points.push_back(point_of(rounds, precision, tp, size));
      if (tp == 1) {
        whole_seconds_.emplace_back();
        for (const Round& round : rounds) whole_seconds_.back().push_back(round.whole_seconds);
      }
      if (profile.edges.empty()) {
        profile.edges = rounds.front().layers.edges, profile.tied = rounds.front().layers.tied;
        for (size_t i = 0; i < profile.layers.size(); ++i) profile.layers[i].output_kept = rounds.front().layers.layers[i].output_kept;
      }
    }
  }

  Round measure_round(LayerGraph& model, const std::string& precision, int64_t size, Group* divided_logits) const {
    Round out;
    const Precision kind = parse_precision(precision);
    std::vector<int64_t> indices(static_cast<size_t>(size));
    std::iota(indices.begin(), indices.end(), 0);
    Batch batch;
    out.read_seconds = seconds_of([&] { data_.train->read(indices, batch); });
    const BatchTensors tensors = as_tensors(batch, data_.train->shape());
    const auto loss_of = [&](const at::Tensor& output) {
      const at::Tensor scores = for_loss(output);
      return divided_logits ? divided_cross_entropy(scores, tensors.target, *divided_logits) : mean_loss(model, scores, tensors.target);
    };
    out.layers = profile_layers(model, tensors.input, {.repeats = 1, .precision = kind, .loss = loss_of});
    out.whole_seconds = whole_seconds(model, kind, tensors, loss_of);
    if (slow_factor_ > 1) slow_down(out);
    return out;
  }

  /// Multiplies the times by the factor of --inject slow, instead of measuring at that speed.
  void slow_down(Round& round) const {
    round.whole_seconds *= slow_factor_, round.read_seconds *= slow_factor_;
    for (LayerProfile& layer : round.layers.layers)
      for (const auto part :
           {&LayerProfile::forward_seconds, &LayerProfile::backward_input_seconds, &LayerProfile::backward_weight_seconds})
        layer.*part *= slow_factor_;
  }

  ProfilePoint point_of(const std::vector<Round>& rounds, const std::string& precision, int tp, int64_t size) const {
    ProfilePoint point{.device = device_, .precision = precision, .tp = tp, .micro_batch = size, .layers = {}};
    std::vector<double> sums, wholes, reads;
    for (const Round& round : rounds) {
      sums.push_back(round.layers.seconds()), wholes.push_back(round.whole_seconds), reads.push_back(round.read_seconds);
    }
    const double ratio = median(sums) > 0 ? median(wholes) / median(sums) : 1;
    for (size_t i = 0; i < rounds.front().layers.layers.size(); ++i) {
      const auto middle = [&](double LayerProfile::* part) {
        std::vector<double> all;
        for (const Round& round : rounds) all.push_back(round.layers.layers[i].*part);
        return ratio * median(all);
      };
      LayerCost& cost = point.layers.emplace_back();
      cost.forward_seconds = middle(&LayerProfile::forward_seconds) + (i == 0 ? median(reads) : 0);
      cost.backward_input_seconds = middle(&LayerProfile::backward_input_seconds);
      cost.backward_weight_seconds = middle(&LayerProfile::backward_weight_seconds);
      cost.stash_bytes = rounds.front().layers.layers[i].stash_bytes;
      cost.output_bytes = rounds.front().layers.layers[i].output_bytes;
      cost.working_bytes = rounds.front().layers.layers[i].working_bytes;
      // The interval is that of the whole model, because single layers of microseconds are too noisy.
      const auto [least, most] = std::minmax_element(wholes.begin(), wholes.end());
      cost.low = std::min(1.0, *least / median(wholes)), cost.high = std::max(1.0, *most / median(wholes));
    }
    return point;
  }

  /// Measured by all ranks at once, as in a step.
  void measure_codings(const LayerGraph& model, ModelProfile& profile) const {
    show("compression");
    std::vector<std::vector<int64_t>> shapes;
    for (const NamedTensor& parameter : distinct_parameters(model))
      if (parameter.tensor.requires_grad()) shapes.push_back(parameter.tensor.sizes().vec());
    const std::vector<CompressionCost> costs = measure_compression(gradient_buckets(shapes), 2);
    const ExchangeCost plain = costs.front().exchange;
    if (plain.sent_bytes == 0) return;
    for (size_t i = 1; i < costs.size(); ++i)
      profile.codings.push_back({.device = device_,
                                 .compress = costs[i].compress,
                                 .seconds = costs[i].compress_seconds * slow_factor_,
                                 .sent_share = static_cast<double>(costs[i].exchange.sent_bytes) / static_cast<double>(plain.sent_bytes),
                                 .num_exchanges = std::max(1, costs[i].exchange.num_exchanges / std::max(1, plain.num_exchanges))});
  }

  void show(const std::string& what) const {
    if (options_.shows_progress && group_.rank() == 0)
      std::fprintf(stderr, "\r\033[Kmeasuring %d %s: %s", group_.size(), group_.size() == 1 ? "worker" : "workers", what.c_str());
  }

  const Config& config_;
  const DataSet& data_;
  const MeasureModelOptions& options_;
  Group& group_;
  std::string device_;
  double slow_factor_;
  std::vector<std::vector<double>> whole_seconds_;  // Of this rank, indexed by size and round.
  int64_t reserved_bytes_ = 0;
};

void append(ModelProfile& all, ModelProfile one) {
  if (all.layers.empty()) {
    all = std::move(one);
    return;
  }
  for (size_t i = 0; i < all.layers.size(); ++i)
    all.layers[i].tensor_parts = std::lcm(all.layers[i].tensor_parts, one.layers[i].tensor_parts);
  all.points.insert(all.points.end(), one.points.begin(), one.points.end());
  all.codings.insert(all.codings.end(), one.codings.begin(), one.codings.end());
  all.measured_on.insert(all.measured_on.end(), one.measured_on.begin(), one.measured_on.end());
}

}  // namespace

ModelProfile measure_model(const Config& config, const DataSet& data, const MeasureModelOptions& options) {
  ModelProfile all;
  const BusyElsewhere busy;
  const int64_t resident_here = resident_file_bytes();
  for (const int workers : options.workers) {
    const Json json = measure_in_ranks(workers, config.backend, [&](const World& world, Group& group) {
      use_compute_threads(config.threads > 0 ? config.threads : cores_of_rank(world));
      ModelProfile profile = ModelMeter(config, data, options, group).run();
      // One worker trains in this process, which has more libraries resident than a fork of it.
      if (workers == 1)
        profile.measured_on.front().devices.front().reserved_bytes += std::max<int64_t>(0, resident_here - resident_file_bytes());
      return to_json(profile);
    });
    append(all, model_profile_from_json(json, "what was measured"));
  }
  if (options.shows_progress) std::fprintf(stderr, "\r\033[K");
  const int most_workers = *std::max_element(options.workers.begin(), options.workers.end());
  const int wanted = config.threads > 0 ? std::min(num_usable_cores(), most_workers * config.threads) : num_usable_cores();
  if (const std::string remark = busy.remark(wanted); !remark.empty())
    log_warning(concat(remark, ": what was measured holds for a machine as busy as that; measure again when it is idle"));
  all.source = "measured on this machine";
  return all;
}

ModelProfile measure_model_together(const Config& config, const DataSet& data, const MeasureModelOptions& options, Group& group) {
  return ModelMeter(config, data, options, group).run();
}

}  // namespace cohort
