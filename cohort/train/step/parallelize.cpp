#include "cohort/train/step/parallelize.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/data/sampler.h"
#include "cohort/parallel/batch_norm/convert_sync_batch_norm.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/parallel/make_strategy.h"
#include "cohort/train/model/strategy_options.h"

namespace cohort {
namespace {

/// Of layers that were left whole for a reason: "conv1 (neither its 4 ...)", at most `most`.
std::string whole_layers(const ShardPlan& plan, size_t most) {
  std::vector<std::string> listed;
  size_t others = 0;
  for (const LayerPlacement& layer : plan.placements) {
    if (layer.placement != "whole" || layer.reason.empty()) continue;
    if (listed.size() < most) listed.push_back(concat(layer.layer, " (", layer.reason, ")"));
    else ++others;
  }
  if (others > 0) listed.push_back(concat(others, " more"));
  return join(listed, ", ");
}

/// ": hidden (column), output (row)", at most `most`: layers of which each rank has a part of the weights.
std::string divided_layers(const ShardPlan& plan, size_t most) {
  std::vector<std::string> listed;
  size_t others = 0;
  for (const LayerPlacement& layer : plan.placements) {
    if (layer.placement == "whole" || layer.placement == "divided") continue;
    if (listed.size() < most) listed.push_back(concat(layer.layer, " (", layer.placement, ")"));
    else ++others;
  }
  if (others > 0) listed.push_back(concat(others, " more"));
  return listed.empty() ? "" : ": " + join(listed, ", ");
}

}  // namespace

void check_division(const ShardPlan& plan, const std::string& model, const Layout& layout) {
  if (!plan.sequence_reason.empty())
    fail(ErrorCode::kBadInput, name_settings("--layout: sequence=1 divides nothing of "), model, ": ", plan.sequence_reason,
         "; leave it out");
  if (plan.num_divided > 0 || plan.divides_positions) return;
  // A module of a user's own: no degree would do.
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
  return concat("tp=", layout.tp, " divides ", divided, " of ", divided + whole, divided + whole == 1 ? " layer" : " layers", " with ",
                std::round(10 * share) / 10, " % of the weights", divided_layers(plan, 6),
                whole > 0 ? "; whole: " + whole_layers(plan, 4) : "");
}

// The recipe: what a layout makes of a model, in the order in which it is done.
//
//   spread_model()   cut        which layers form which stage, and which recompute their activations: measured where the layout leaves it
//                               open
//                    divide     which layers tp divides, which it cannot
//                    group      the mesh: with whom this rank exchanges what; the parts of other ranks leave the model
//   parallelize()    batch norm takes its statistics over the ranks with the same part, where it was asked to
//                    shares     each rank's part of the global batch, which must not be empty
//                    strategy   sums gradients over those ranks and updates: replicated, one copy, ZeRO
//
// What is left of a layout afterwards are values that the loop asks for: ModelPart says which share of the batch this rank takes, what it
// draws its random numbers from, who has the output. Where the layout has neither pp nor tp the part is all of the model, so nothing that
// follows asks which kind of layout it is.

void check_batch_norm(const Config& config, bool has_some) {
  if (config.sync_batch_norm && !has_some)
    fail(ErrorCode::kBadInput, name_settings("--sync-batch-norm: the model "), config.model,
         " has no batch norm layers; leave the option out");
}
namespace {

/// Some faults are of one replica, some of one rank of a tensor-parallel group, some of all.
void put_in_fault(Fault fault, const Job& job, const ModelPart& part, LayerGraph& model) {
  if (fault == Fault::kNone) return;
  const int replica = part.here().data, num_replicas = part.mesh().data_size(part.here().pipe);
  const bool is_last = replica + 1 == num_replicas;
  const bool of_a_replica = fault == Fault::kGradientScaled || fault == Fault::kShareDropped || fault == Fault::kDropoutOfAnotherStep;
  if (of_a_replica && !is_last) return;
  // Without a second piece there would be no training left.
  if (fault == Fault::kShareDropped && num_replicas * job.config.accumulate * job.layout.microbatches == 1) return;
  if (fault == Fault::kPartialSumMissing && (job.layout.tp == 1 || part.here().tensor + 1 != job.layout.tp)) return;
  if (fault == Fault::kBatchNormNotShared && !job.config.sync_batch_norm) return;
  if (fault == Fault::kBucketNotExchanged) {
    const std::vector<NamedTensor> trained = trained_parameters(distinct_parameters(model));
    if (replica > 0 && !trained.empty()) trained.front().tensor.register_hook([](const at::Tensor& gradient) { return gradient * 0; });
    return;
  }
  bear_fault(fault);
}

void share_batch_norm(LayerGraph& model, const Job& job, const Group& data_group, Group& group) {
  if (!job.config.sync_batch_norm) return;
  // Statistics are those of a whole micro-batch on any number of ranks, one included.
  if (bears_fault(Fault::kBatchNormNotShared)) return model.set_sample_granularity(1);
  std::vector<int> everybody(static_cast<size_t>(data_group.size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  // Layers wait for each other in an order of their own, so they get a group of their own.
  const int converted = convert_sync_batch_norm(model, data_group.size() > 1 ? data_group.split(everybody, "batch norm") : data_group);
  const std::vector<std::string> everywhere = group.all_gather_text(converted > 0 ? "some" : "", "which ranks have batch norm");
  check_batch_norm(job.config, std::any_of(everywhere.begin(), everywhere.end(), [](const std::string& some) { return !some.empty(); }));
  model.set_sample_granularity(1);
}

int64_t samples_of_step(const Job& job, const DataSet& data) { return std::min(job.config.global_batch, data.train->num_samples()); }

/// Equal shares may leave nothing for some ranks; shares that were asked for are taken as they come.
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

/// Pieces that were asked for and would all be one.
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
  put_in_fault(options.fault, job, *out.part, model);
  share_batch_norm(model, job, out.part->data(), group);
  check_shares(job, *out.part, model, data);
  if (options.checks_pieces) check_pieces(job, model, data);
  out.strategy = make_strategy(model, out.part->data(), strategy_options(job));
  out.strategy->set_counted_elsewhere(out.part->counted_elsewhere(model));
  return out;
}

}  // namespace cohort
