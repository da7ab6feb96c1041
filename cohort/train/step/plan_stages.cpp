#include "cohort/train/step/plan_stages.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/group_internals.h"
#include "cohort/comm/link.h"
#include "cohort/pipeline/stage_cut.h"
#include "cohort/plan/recompute/recompute_choice.h"
#include "cohort/plan/split/auto_split.h"
#include "cohort/plan/split/branches.h"
#include "cohort/plan/split/split.h"
#include "cohort/record/run_event.h"
#include "cohort/schedule/schedule.h"
#include "cohort/train/model/batch_tensors.h"
#include "cohort/train/model/profile_layers.h"
#include "cohort/train/model/strategy_options.h"

namespace cohort {
namespace {

/// A hand-over inside of a host: see docs/algorithms/handover.md for measurements.
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

/// A user's table says for how many ranks and micro-batches it is.
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

/// Stages in the places that the named schedule gives them.
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

/// The cut into runs of layers: by measurement, by count, or as given.
Split choose_split(const Profile& profile, const StageRequest& asked, const std::vector<int>& workers) {
  SplitOptions options = split_options(asked);
  if (asked.layout.recompute != "none") options.memory_bytes = 0;  // What does not fit then recomputes.
  if (asked.layout.split == "even") return even_split(profile, options);
  if (asked.layout.split == "auto") return auto_split(profile, asked.layout, options, workers);
  std::vector<int> cuts;
  for (const std::string& part : split(asked.layout.split, '/')) cuts.push_back(static_cast<int>(parse_integer(part).value_or(0)));
  return given_split(profile, options, cuts);
}

/// recompute=auto: what fits the limit at the least cost; without a limit nothing recomputes.
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
  const int num_stages = count_stages(layout);  // Refuses a table that is for another layout, whoever names the stages.
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
  // Ranks that compute side by side share caches and memory, as they will in training. More ranks than cores would share those too.
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

}  // namespace cohort
