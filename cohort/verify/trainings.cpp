#include "cohort/verify/trainings.h"

#include <ATen/ops/arange.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/job/specs/batch_schedule.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/run/train_job.h"
#include "cohort/verify/suspects.h"
#include "cohort/world/launch.h"

namespace cohort {

struct Trainings::Variant {
  int pieces = 1;
  double nudge = 0;
  Fault fault = Fault::kNone;
  std::optional<Layout> sequential = {};
  StagesOfRun stages = {};
};

namespace {

/// True if a worker adds gradients of several stages to one weight, in the order of its schedule.
bool adds_stages_up(const StagesOfRun& stages) {
  return std::any_of(stages.tied.begin(), stages.tied.end(), [](const TiedUse& use) { return use.of_same_worker; });
}

/// The layout reduced to what its arithmetic depends on. Of ZeRO it depends on the exchange after every micro-step (2 and 3), and of equal
/// stages on weights to which a worker adds gradients of several stages.
Layout arithmetic_of(const Layout& layout, const StagesOfRun& stages, int64_t most_micro_steps) {
  Layout result;
  if (layout.zero >= 2 && layout.pp == 1 && most_micro_steps > 1) result.zero = 2;
  result.dp = num_pipelines(layout);
  result.tp = layout.tp;
  result.microbatches = layout.microbatches;
  result.sequence = layout.sequence;
  if (layout.is_even()) {
    if (!adds_stages_up(stages)) return result;
    result.pp = layout.pp;
    result.schedule = layout.schedule;
    result.recompute = layout.recompute;
    return result;
  }
  result.pp = layout.pp;
  result.stages = layout.stages;
  return result;
}

}  // namespace

Trainings::Trainings(const Config& config, const DataSet& data) : config_(config), data_(data) {
  config_.checkpoint_every = 0;
  config_.resume = config_.json = false;
  config_.goal.clear();
  // Kernels divide sums over threads, so all runs use the same number.
  config_.threads = std::max(1, config_.threads);
  // All runs get bitwise the same scores from a teacher.
  if (!config_.teacher.empty() && config_.teacher_answers == "auto") config_.teacher_answers = "live";
}
Trainings::~Trainings() = default;

std::string Trainings::run(Job job, const Variant& variant) {
  const int num_ranks = job.num_ranks();
  job.config.run = concat(folder_.path(), "/", num_runs_++);
  TrainOptions options{
      .reports = false, .keep_first = num_ranks == 1 && !initial_.contains(variant.nudge), .sequential = variant.sequential};
  inject_fault(variant.fault, job, options);
  if (num_ranks == 1)
    options.alter_model = [&variant, description = modules_path()](LayerGraph& model) {
      if (variant.nudge > 0) nudge_weights(model, variant.nudge);
      if (!std::filesystem::exists(description)) write_file_atomically(description, describe_modules(model).dump());
      if (!variant.sequential) return AlteredModel();
      BackwardOrder order;
      if (adds_stages_up(variant.stages)) order = backward_order(model, *variant.sequential, variant.stages.layers);
      AlteredModel altered = compute_in_pieces(model, *variant.sequential, variant.stages.tied);
      altered.order = std::move(order);
      cross_stages(model, variant.stages.layers);
      return altered;
    };
  const int code = run_ranks({.num_ranks = num_ranks, .is_one_of_many = true}, [&](const World& world) {
    return train(job, data_, world, options).interrupted ? static_cast<int>(ErrorCode::kInterrupted) : 0;
  });
  if (code != 0) throw Error(static_cast<ErrorCode>(code), "");  // The ranks have reported why.
  return job.config.run + "/checkpoints";
}

const std::string& Trainings::folder() const { return folder_.path(); }

std::string Trainings::modules_path() const { return folder_.path() + "/modules.json"; }

Json Trainings::modules() const {
  constexpr size_t kMostBytes = size_t{64} << 20;
  return Json::parse(read_small_file(modules_path(), kMostBytes));
}

const Checkpoint& Trainings::known(const std::string& key, const Variant& variant) {
  const auto found = one_process_.find(key);
  if (found != one_process_.end()) return found->second;
  Config config = config_;
  config.memory_limit = 0;
  config.accumulate *= variant.pieces;
  if (!variant.sequential) config.shares = "equal";
  const std::string folder = run(resolve(config, Layout()), variant);
  if (!initial_.contains(variant.nudge)) initial_.emplace(variant.nudge, Checkpoint::open(folder + "/step-000000000"));
  std::optional<Checkpoint> checkpoint = Checkpoint::open_latest(folder);
  if (!checkpoint) fail(ErrorCode::kFailed, "verify: training by one process left no checkpoint in ", folder);
  return one_process_.emplace(key, std::move(*checkpoint)).first->second;
}

const Checkpoint& Trainings::initial() {
  one_process();
  return initial_.at(0);
}

const Checkpoint& Trainings::one_process(int pieces, double nudge) {
  return known(concat("one process, pieces=", pieces, ",nudge=", nudge), {.pieces = pieces, .nudge = nudge});
}

const Checkpoint& Trainings::sequential(const Layout& layout, const StagesOfRun& stages, double nudge) {
  const Job job = resolve(config_, layout);
  const Layout arithmetic = arithmetic_of(layout, stages, config_.accumulate * largest_batch_factor(job.batch_stages));
  if (arithmetic.num_ranks() == 1 && arithmetic.microbatches == 1 && stages.layers.empty()) return one_process(1, nudge);
  std::string key = concat(to_text(arithmetic), ",microbatches=", arithmetic.microbatches, ",nudge=", nudge, ",stages=");
  for (const LayerStage& layer : stages.layers) key += concat(" ", layer.stage, "/", layer.worker);
  for (const TiedUse& use : stages.tied) key += concat(" ", use.name);
  return known(key, {.nudge = nudge, .sequential = arithmetic, .stages = stages});
}

Checkpoint Trainings::ranks(const Layout& layout, Fault fault) {
  std::optional<Checkpoint> checkpoint = Checkpoint::open_latest(run(resolve(config_, layout), {.fault = fault}));
  if (!checkpoint) fail(ErrorCode::kFailed, "verify: training with layout ", to_text(layout), " left no checkpoint");
  return std::move(*checkpoint);
}

void nudge_weights(torch::nn::Module& model, double unit) {
  at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : model.parameters()) {
    if (!parameter.is_floating_point()) continue;
    // In double: at::where() of two numbers would round them to fp32.
    const at::Tensor up = at::arange(parameter.numel()).remainder(3).eq(0).view(parameter.sizes()).to(at::kDouble);
    parameter.mul_(up.mul(2 * unit).add(1 - unit).to(parameter.scalar_type()));
  }
}

}  // namespace cohort
