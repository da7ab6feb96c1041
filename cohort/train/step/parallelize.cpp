// Applies a layout to a model, in this order:
//
//   spread_model()   cut        which layers form which stage, and which recompute their activations: measured where the layout leaves it
//                               open
//                    divide     which layers tp divides, and which it cannot
//                    group      the mesh: with whom this rank exchanges what; the layers of other ranks leave the model
//   parallelize()    batch norm takes its statistics over the ranks with the same part, with --sync-batch-norm
//                    shares     each rank's share of the global batch, which must not be empty
//                    strategy   sums gradients over those ranks and updates: replicated, one copy, ZeRO
//
// Afterwards the training loop asks ModelPart: which share of the batch this rank takes, its random stream, who has the output. Without pp
// and tp the part is the whole model, so nothing that follows depends on the kind of layout.
// Cost: one all-gather of the plan as text, and where layers are measured their profile (profile_layers.cpp) on rank 0, or on all ranks of
// a host that has a core for each.
#include "cohort/train/step/parallelize.h"

#include "cohort/models/graph/layer_graph.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/group_internals.h"
#include "cohort/comm/link.h"
#include "cohort/data/sampler.h"
#include "cohort/parallel/batch_norm/convert_sync_batch_norm.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/parallel/make_strategy.h"
#include "cohort/pipeline/stage_cut.h"
#include "cohort/plan/cut/split.h"
#include "cohort/record/run_event.h"
#include "cohort/schedule/schedule.h"
#include "cohort/train/model/batch_tensors.h"
#include "cohort/train/model/profile_layers.h"
#include "cohort/train/model/strategy_options.h"

namespace cohort {
namespace {

/// A transfer between stages within a host; measurements: docs/algorithms/handover.md.
constexpr double kSharedLatencySeconds = 5e-6, kSharedBytesPerSecond = 4e9;

Profile measure(LayerGraph& model, const StageRequest& asked) {
  const StageSample sample = asked.sample();
  try {
    return profile_layers(model, sample.input, {.precision = asked.precision, .loss = sample.loss});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadInput || asked.sample_name.empty()) throw;
    throw Error(error.code(), asked.sample_name + ": " + error.what());
  }
}

bool needs_profile(const StageRequest& asked) {
  return asked.layout.pp > 1 || (asked.layout.recompute == "auto" && asked.memory_limit_bytes > 0);
}

/// A user's schedule file is for a fixed number of ranks and micro-batches.
int num_stages_of_file(const Layout& layout) {
  const Schedule schedule = read_schedule_file(layout.schedule);
  const std::vector<int> degrees = layout.data_degrees();
  const int num_ranks = layout.is_even() ? layout.pp : std::accumulate(degrees.begin(), degrees.end(), 0);
  if (schedule.num_ranks() != num_ranks)
    fail(ErrorCode::kBadInput, name_settings("--layout: schedule="), layout.schedule, " is for ", schedule.num_ranks(),
         " ranks, and the pipeline of this layout has ", num_ranks);
  if (schedule.num_micro_batches != layout.microbatches)
    fail(ErrorCode::kBadInput, name_settings("--layout: schedule="), layout.schedule, " is for ", schedule.num_micro_batches,
         " micro-batches; say microbatches=", schedule.num_micro_batches);
  const int named = static_cast<int>(layout.stages.size());
  if (named > 0 && named != schedule.num_stages)
    fail(ErrorCode::kBadInput, name_settings("--layout: schedule="), layout.schedule, " is for ", schedule.num_stages,
         " stages, and the layout names ", named);
  return schedule.num_stages;
}

int count_stages(const Layout& layout) {
  if (layout.schedule.ends_with(".json")) return num_stages_of_file(layout);
  return layout.stages.empty() ? num_stages_of(layout.schedule, layout.pp) : static_cast<int>(layout.stages.size());
}

/// The worker of each stage, by the schedule.
std::vector<int> workers_of_schedule(const Layout& layout, int num_stages) {
  std::vector<int> workers(static_cast<size_t>(num_stages));
  const Schedule schedule = layout.schedule.ends_with(".json")
                                ? read_schedule_file(layout.schedule)
                                : make_schedule(layout.schedule, {.num_ranks = layout.pp, .num_micro_batches = 1});
  const auto ranks = ranks_of_stages(schedule);
  for (size_t stage = 0; stage < workers.size(); ++stage) workers[stage] = ranks[stage][0];
  return workers;
}

/// Tensor parallelism divides nearly all of a stage, and ZeRO its optimizer state: the profile knows whole layers.
SplitOptions split_options(const StageRequest& asked) {
  const UpdateRule& rule = asked.rule;
  const bool adam = rule.kind == UpdateRule::Kind::kAdam || rule.kind == UpdateRule::Kind::kAdamW;
  SplitOptions options;
  options.num_stages = count_stages(asked.layout);
  options.num_micro_batches = asked.layout.microbatches;
  options.num_ranks = asked.layout.pp;
  options.memory_bytes = asked.memory_limit_bytes * asked.layout.tp;
  options.optimizer_bytes_factor = rule.kind == UpdateRule::Kind::kSgd ? 0 : adam ? 2 : 1;
  if (asked.layout.zero > 0) options.optimizer_bytes_factor /= num_pipelines(asked.layout);
  return options;
}

Split choose_split(const Profile& profile, const StageRequest& asked, const std::vector<int>& workers) {
  SplitOptions options = split_options(asked);
  if (asked.layout.recompute != "none") options.memory_bytes = 0;  // A stage that does not fit recomputes instead.
  if (asked.layout.split == "even") return even_split(profile, options);
  if (asked.layout.split == "auto") return auto_split(profile, asked.layout, options, workers);
  std::vector<int> cuts;
  for (const std::string& part : split(asked.layout.split, '/')) cuts.push_back(static_cast<int>(parse_integer(part).value_or(0)));
  return given_split(profile, options, cuts);
}

/// recompute=auto is the cheapest choice within the memory limit; without a limit no layer recomputes.
std::vector<bool> choose_recompute(const Profile& profile, const StagePlan& plan, const StageRequest& asked) {
  std::vector<bool> chosen = recomputed_layers(asked.layout.recompute, profile.layers.size());
  if (asked.layout.recompute != "auto" || asked.memory_limit_bytes == 0) return chosen;
  const std::vector<int>& stage_of = plan.stages.stage_of;
  const int num_layers = static_cast<int>(profile.layers.size()), num_stages = stage_of.empty() ? 1 : 1 + stage_of.back();
  if (!std::is_sorted(stage_of.begin(), stage_of.end()))
    fail(ErrorCode::kBadInput,
         name_settings("--layout: recompute=auto chooses for stages that are runs of layers; use recompute=all with these stages"));
  // Stages of one worker share its memory evenly.
  const int stages_of_worker = std::max(1, num_stages / asked.layout.pp);
  for (int stage = 0, first = 0; stage < num_stages; ++stage) {
    int end = first;
    while (end < num_layers && (stage_of.empty() || stage_of[static_cast<size_t>(end)] == stage)) ++end;
    const RecomputeChoice choice =
        choose_recompute(profile, {.first_layer = first,
                                   .end_layer = end,
                                   .kept_micro_batches = std::max(1, std::min(asked.layout.microbatches, num_stages - stage)),
                                   .memory_bytes = asked.memory_limit_bytes * asked.layout.tp / stages_of_worker,
                                   .optimizer_bytes_factor = split_options(asked).optimizer_bytes_factor});
    for (int layer = first; layer < end; ++layer) chosen[static_cast<size_t>(layer)] = choice.layers[static_cast<size_t>(layer)];
    first = end;
  }
  return chosen;
}

StagePlan make_plan(LayerGraph& model, const StageRequest& asked, const LinkEstimate& link) {
  StagePlan plan;
  const Layout& layout = asked.layout;
  const int num_stages = count_stages(layout);  // Also rejects a schedule file for another layout.
  const size_t num_layers = model.layers().size();
  const bool pipelined = layout.pp > 1, measured = needs_profile(asked);
  Profile profile;
  if (measured) {
    profile = measure(model, asked);
    profile.link_latency_seconds = link.latency_seconds;
    profile.link_bytes_per_second = link.bytes_per_second;
  }
  if (!layout.stages.empty()) {
    plan.stages.stage_of = cut_by_layout(model, layout).stage_of;
    for (const LayoutStage& stage : layout.stages) plan.stages.worker_of_stage.push_back(stage.worker);
  } else if (pipelined && layout.split == "branches") {
    const BranchPlacement placement = place_branches(profile, layout.pp);
    const int used = 1 + *std::max_element(placement.rank.begin(), placement.rank.end());
    if (used < layout.pp)
      fail(ErrorCode::kBadInput, name_settings("--layout: split=branches finds work for "), used, used == 1 ? " worker" : " workers",
           " of ", layout.pp, ": a micro-batch takes ", 1e3 * placement.seconds, " ms there, ", 1e3 * placement.one_rank_seconds,
           " ms on one; use split=auto, or name the stages in a layout file");
    plan.stages = {stage_of_layers(placement.first_layer, num_layers), placement.rank};
  } else if (pipelined) {
    const std::vector<int> workers = workers_of_schedule(layout, num_stages);
    const Split split = choose_split(profile, asked, workers);
    plan.stages = {stage_of_layers(split.first_layer, num_layers), workers};
    plan.table = describe(profile, split);
  }
  if (layout.recompute != "none") {
    plan.recompute = recomputed_layers(layout.recompute, num_layers);
    if (measured) plan.recompute = choose_recompute(profile, plan, asked);
  }
  if (!pipelined) return plan;
  plan.stages.seconds = ordering_seconds(profile, layout, plan.stages, plan.recompute);
  plan.pipeline = forecast_pipeline(profile, layout, plan.stages, plan.recompute);
  plan.predicted_step_seconds = plan.pipeline.predicted_step_seconds * std::max(1, asked.num_micro_steps);
  if (plan.table.empty()) plan.table = describe(plan.pipeline);
  return plan;
}

Json to_json(const StagePlan& plan) {
  const StageSeconds& seconds = plan.stages.seconds;
  return Json{{"stage_of", plan.stages.stage_of},
              {"worker_of_stage", plan.stages.worker_of_stage},
              {"seconds", {seconds.forward, seconds.backward_input, seconds.backward_weight}},
              {"recompute", plan.recompute},
              {"predicted_step_seconds", plan.predicted_step_seconds},
              {"pipeline", to_json(plan.pipeline)},
              {"table", plan.table}};
}

StagePlan plan_from_json(const Json& json) {
  const Json& seconds = json.at("seconds");
  return {{json.at("stage_of").get<std::vector<int>>(),
           json.at("worker_of_stage").get<std::vector<int>>(),
           {seconds.at(0).get<std::vector<double>>(), seconds.at(1).get<std::vector<double>>(), seconds.at(2).get<std::vector<double>>()}},
          json.at("recompute").get<std::vector<bool>>(),
          json.at("predicted_step_seconds").get<double>(),
          record_from<PipelineRecord>(json.at("pipeline"), "the plan of the stages"),
          json.at("table").get<std::string>()};
}

/// "conv1 (neither its 4 ...), ..., 3 more": at most `most` of the layers for which `text` is not empty.
template <typename Text>
std::string listed_layers(const ShardPlan& plan, size_t most, const Text& text) {
  std::vector<std::string> listed;
  size_t others = 0;
  for (const LayerPlacement& layer : plan.placements) {
    const std::string reason = text(layer);
    if (reason.empty()) continue;
    if (listed.size() < most) listed.push_back(concat(layer.layer, " (", reason, ")"));
    else ++others;
  }
  if (others > 0) listed.push_back(concat(others, " more"));
  return join(listed, ", ");
}

/// Layers that stay whole for a reason.
std::string whole_layers(const ShardPlan& plan, size_t most) {
  return listed_layers(plan, most, [](const LayerPlacement& layer) { return layer.placement == "whole" ? layer.reason : ""; });
}

/// Layers whose weights are divided; "divided" ones have none.
std::string divided_layers(const ShardPlan& plan, size_t most) {
  return listed_layers(plan, most, [](const LayerPlacement& layer) {
    return layer.placement == "whole" || layer.placement == "divided" ? "" : layer.placement;
  });
}

void share_batch_norm(LayerGraph& model, const Job& job, const Group& data_group, Group& group, bool shares) {
  if (!job.config.sync_batch_norm) return;
  // Statistics are those of a whole micro-batch on any number of ranks, also on one.
  if (!shares) return model.set_sample_granularity(1);
  std::vector<int> everybody(static_cast<size_t>(data_group.size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  // Layers exchange in another order than gradients, so they get a group of their own.
  const int converted = convert_sync_batch_norm(model, data_group.size() > 1 ? data_group.split(everybody, "batch norm") : data_group);
  const std::vector<std::string> everywhere = group.all_gather_text(converted > 0 ? "some" : "", "which ranks have batch norm");
  check_batch_norm(job.config, std::any_of(everywhere.begin(), everywhere.end(), [](const std::string& some) { return !some.empty(); }));
  model.set_sample_granularity(1);
}

int64_t samples_of_step(const Job& job, const DataSet& data) { return std::min(job.config.global_batch, data.train->num_samples()); }

/// Equal shares may leave a rank without samples; shares that the user gave may do so.
void check_shares(const Job& job, const ModelPart& part, const LayerGraph& model, const DataSet& data) {
  if (job.config.shares != "equal") return;
  const int64_t granularity = model.sample_granularity();
  const int num_shares = part.num_pipelines();
  for (int share = 0; share < num_shares; ++share)
    if (share_of_rank(samples_of_step(job, data), share, num_shares, granularity).size() == 0)
      fail(ErrorCode::kBadInput, "a global batch of ", job.config.global_batch, " leaves ", part.is_whole() ? "rank " : "replica ", share,
           " of ", num_shares, " without samples",
           granularity >= LayerGraph::kWholeBatch
               ? name_settings(
                     ": this model's batch norm takes a batch whole; use --sync-batch-norm, or another norm (norm=ghost, group, none)")
           : granularity > 1
               ? name_settings(": this model's batch norm keeps groups of samples together; use fewer workers, a larger --global-batch, "
                               "--sync-batch-norm, or another norm (norm=ghost with a smaller ghost=N, group, none)")
               : name_settings("; use fewer workers, or a larger --global-batch"));
}

/// Rejects accumulation or micro-batches that this model's batch norm merges into one.
void check_pieces(const Job& job, const LayerGraph& model, const DataSet& data) {
  const int64_t asked = int64_t{job.config.accumulate} * job.layout.microbatches;
  if (asked == 1 || num_pieces(job, model, data) > 1 || !job.config.taken_from.empty()) return;
  fail(ErrorCode::kBadInput,
       job.config.accumulate > 1 ? concat(name_settings("--accumulate "), job.config.accumulate)
                                 : concat("microbatches=", job.layout.microbatches),
       " would do nothing here: this model's batch norm takes a batch of ", job.config.global_batch,
       name_settings(
           " whole; leave it out, or use --sync-batch-norm or another norm (norm=group, none, norm=ghost with a smaller ghost=N)"));
}

}  // namespace

StageRequest stage_request(const LayerGraph& model, const Job& job, const DataSource& data) {
  const Config& config = job.config;
  const Layout& layout = job.layout;
  const int64_t pieces = static_cast<int64_t>(num_pipelines(layout)) * std::max(1, config.accumulate) * layout.microbatches;
  const int64_t micro_batch = std::clamp<int64_t>(config.global_batch / pieces, 1, data.num_samples());
  const auto sample = [&model, &data, micro_batch] {
    std::vector<int64_t> indices(static_cast<size_t>(micro_batch));
    std::iota(indices.begin(), indices.end(), 0);
    const auto batch = std::make_shared<Batch>();
    data.read(indices, *batch);
    const BatchTensors tensors = as_tensors(*batch, data.shape());
    return StageSample{tensors.input,
                       [&model, batch, target = tensors.target](const at::Tensor& output) { return loss_of(model, output, target); }};
  };
  return {.layout = layout,
          .rule = job.rule,
          .precision = job.precision,
          .memory_limit_bytes = config.memory_limit,
          .num_micro_steps = config.accumulate,
          .sample = sample};
}

StagePlan plan_stages(LayerGraph& model, const StageRequest& request, Group& group) {
  const Layout& layout = request.layout;
  if (layout.pp == 1 && layout.recompute == "none") return {};
  LinkEstimate link{kSharedLatencySeconds, kSharedBytesPerSecond};
  if (layout.pp > 1 && !GroupInternals::arena(group)) link = measure_link(group, 0.1);
  // All ranks of a host measure at once, so that they share caches and memory as in training, unless they would share cores too.
  const auto ranks_here = static_cast<long>(group.ranks_of_my_host().size());
  const bool all_measure = needs_profile(request) && ranks_here <= ::sysconf(_SC_NPROCESSORS_ONLN);
  if (all_measure) group.barrier();
  std::string answer;
  if (group.rank() == 0 || all_measure) {
    try {
      if (group.rank() == 0) answer = to_json(make_plan(model, request, link)).dump();
      else measure(model, request);
    } catch (const Error& error) {
      answer = Json{{"code", static_cast<int>(error.code())}, {"error", error.what()}}.dump();
    }
  }
  const Json plan = Json::parse(group.all_gather_text(answer, "the plan of the stages").front());
  if (plan.contains("error")) throw Error(static_cast<ErrorCode>(plan.at("code").get<int>()), plan.at("error").get<std::string>());
  return plan_from_json(plan);
}

void check_division(const ShardPlan& plan, const std::string& model, const Layout& layout) {
  if (!plan.sequence_reason.empty())
    fail(ErrorCode::kBadInput, name_settings("--layout: sequence=1 divides nothing of "), model, ": ", plan.sequence_reason,
         "; leave it out");
  if (plan.num_divided > 0 || plan.divides_positions) return;
  // A single module of the user's own, which no degree divides.
  if (plan.placements.size() == 1 && plan.placements.front().reason.starts_with("there is no rule"))
    fail(ErrorCode::kBadInput, name_settings("--layout: tp="), layout.tp, " divides no layer of ", model,
         ", which is one layer: let its factory return a torch::nn::Sequential or a cohort::LayerGraph of its layers, or use dp");
  const std::string whole = whole_layers(plan, 3);
  if (whole.empty())
    fail(ErrorCode::kBadInput, name_settings("--layout: tp="), layout.tp, " divides no layer of ", model,
         ": none has a weight matrix that ranks could share; use dp or pp");
  fail(ErrorCode::kBadInput, name_settings("--layout: tp="), layout.tp, " divides no layer of ", model, ": ", whole,
       "; use a degree that divides them, or dp or pp");
}

DivisionRecord division_record(const ShardPlan& plan, const Layout& layout) {
  DivisionRecord division{
      .sentence = describe(plan, layout),
      .divided_weights = static_cast<double>(plan.num_divided) / static_cast<double>(std::max<int64_t>(1, plan.num_parameters))};
  for (const LayerPlacement& layer : plan.placements) division.layers.push_back({layer.layer, layer.placement, layer.reason});
  return division;
}

std::string describe(const ShardPlan& plan, const Layout& layout) {
  size_t divided = 0, whole = 0;
  for (const LayerPlacement& layer : plan.placements) {
    if (layer.placement != "whole") ++divided;
    else if (!layer.reason.empty()) ++whole;
  }
  const double share = 100.0 * static_cast<double>(plan.num_divided) / static_cast<double>(std::max<int64_t>(1, plan.num_parameters));
  const std::string weights = divided_layers(plan, 6);
  return concat("tp=", layout.tp, " divides ", divided, " of ", divided + whole, divided + whole == 1 ? " layer" : " layers", " with ",
                std::round(10 * share) / 10, " % of the weights", weights.empty() ? "" : ": " + weights,
                whole > 0 ? "; whole: " + whole_layers(plan, 4) : "");
}

void check_batch_norm(const Config& config, bool has_some) {
  if (config.sync_batch_norm && !has_some)
    fail(ErrorCode::kBadInput, name_settings("--sync-batch-norm: the model "), config.model,
         " has no batch norm layers; leave the option out");
}

ParameterPlaces SpreadModel::places() const {
  return {.shards = part->sharded().shards,
          .saves_whole = part->here().tensor == 0,
          .saves_buffers = part->here().data == 0,
          .aliases = aliases};
}

int64_t num_pieces(const Job& job, const LayerGraph& model, const DataSet& data) {
  const int asked = job.config.accumulate * job.layout.microbatches;
  int64_t pieces = 0;
  for (int piece = 0; piece < asked; ++piece)
    pieces += share_of_rank(samples_of_step(job, data), piece, asked, model.sample_granularity()).size() > 0;
  return pieces;
}

SpreadModel spread_model(LayerGraph& model, const StageRequest& request, Group& group, const std::string& title) {
  const Layout& layout = request.layout;
  SpreadModel out;
  out.plan = plan_stages(model, request, group);
  if (!out.plan.recompute.empty()) model.set_recompute(out.plan.recompute);
  for (const NamedTensor& parameter : distinct_parameters(model, &out.aliases)) out.num_parameters += parameter.tensor.numel();
  if (layout.tp > 1) {
    out.division = plan_shards(model, layout.tp, {.sequence_parallel = layout.sequence});
    check_division(out.division, title, layout);
  }
  out.part = std::make_unique<ModelPart>(model, group, layout, out.plan.stages);
  return out;
}

ParallelModel parallelize(LayerGraph& model, const Job& job, const DataSet& data, Group& group, const ParallelizeOptions& options) {
  ParallelModel out{spread_model(model, stage_request(model, job, *data.train), group, job.config.model), nullptr};
  if (options.alter_part) options.alter_part(model, *out.part);
  share_batch_norm(model, job, out.part->data(), group, options.shares_batch_norm);
  check_shares(job, *out.part, model, data);
  if (options.checks_pieces) check_pieces(job, model, data);
  out.strategy = make_strategy(model, out.part->data(), strategy_options(job));
  out.strategy->set_counted_elsewhere(out.part->counted_elsewhere(model));
  return out;
}

}  // namespace cohort
