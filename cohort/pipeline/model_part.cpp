#include "cohort/pipeline/model_part.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/job/specs/sync_mode.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/plan/cost/pipeline_forecast.h"
#include "cohort/schedule/scheduler.h"
#include "cohort/tensor/collective_ops.h"

namespace cohort {
namespace {

Mesh mesh_of(const Layout& layout) {
  if (layout.is_even()) return Mesh(num_pipelines(layout), layout.pp, layout.tp, layout.order);
  return Mesh(layout.data_degrees(), layout.tp);
}

Group part_of(const Group& world, const std::vector<int>& ranks, const std::string& what) {
  return ranks.size() == 1 ? Group() : world.split(ranks, what);
}

}  // namespace

ModelPart::ModelPart(LayerGraph& model, Group world, const Layout& layout, const StageAssignment& stages)
    : world_(std::move(world)), mesh_(mesh_of(layout)), here_(mesh_.point(world_.rank())) {
  if (mesh_.num_ranks() != world_.size())
    fail(ErrorCode::kBadInput, name_settings("--layout "), to_text(layout), " is for ", mesh_.num_ranks(), " ranks and there are ",
         world_.size());
  make_groups(layout);
  if (layout.tp > 1) sharded_ = shard_graph(model, tensor_, {.sequence_parallel = layout.sequence});
  if (layout.pp > 1) make_pipeline(model, layout, stages);
}

void ModelPart::make_groups(const Layout& layout) {
  tensor_ = part_of(world_, mesh_.tensor_ranks(world_.rank()), "tensor");
  data_ = layout.is_model_parallel() ? part_of(world_, mesh_.data_ranks(world_.rank()), "data") : world_;
  if (!layout.is_model_parallel() || !is_local(layout.sync)) return;
  std::vector<int> replica;
  for (int rank = 0; rank < mesh_.num_ranks(); ++rank)
    if (mesh_.point(rank).data == here_.data) replica.push_back(rank);
  replica_ = part_of(world_, replica, "replica");
}

void ModelPart::make_pipeline(LayerGraph& model, const Layout& layout, const StageAssignment& stages) {
  StageCut cut = cut_graph(model, stages.stage_of);
  // Ranks with this tensor coordinate, of one pipeline or, where stages have different numbers of replicas, of all.
  std::vector<int> members;
  std::vector<std::vector<int>> member_of(static_cast<size_t>(layout.pp));
  for (int worker = 0; worker < layout.pp; ++worker)
    for (int replica = 0; replica < mesh_.data_size(worker); ++replica) {
      if (mesh_.is_uniform() && replica != here_.data) continue;
      member_of[static_cast<size_t>(worker)].push_back(static_cast<int>(members.size()));
      members.push_back(mesh_.rank_at({replica, worker, here_.tensor}));
    }
  std::vector<std::vector<int>> ranks_of_stage;
  for (const int worker : stages.worker_of_stage) ranks_of_stage.push_back(member_of.at(static_cast<size_t>(worker)));
  pipeline_ranks_ = members;
  Scheduler scheduler(layout, cut.stage_edges(), std::move(ranks_of_stage), stages.seconds);
  pipeline_ = std::make_unique<PipelineRunner>(model, std::move(cut), std::move(scheduler), part_of(world_, members, "pipeline"));
}

std::string ModelPart::describe_groups() const {
  if (is_whole()) return "";
  const auto listed = [](const std::string& name, const std::vector<int>& ranks) {
    std::string text = name + ": job ranks";
    for (const int rank : ranks) text += concat(" ", rank);
    return text;
  };
  std::vector<std::string> groups;
  if (data_.size() > 1) groups.push_back(listed("data", mesh_.data_ranks(world_.rank())));
  if (pipeline_) groups.push_back(listed("pipeline", pipeline_ranks_));
  if (tensor_.size() > 1) groups.push_back(listed("tensor", mesh_.tensor_ranks(world_.rank())));
  return join(groups, "; ");
}

at::Tensor ModelPart::whole_output(const at::Tensor& output) const {
  at::NoGradGuard no_grad;
  return sharded_.logits_divided ? gather_from_ranks(output, output.dim() - 1, tensor_) : output;
}

std::set<std::string> ModelPart::counted_elsewhere(const LayerGraph& model) const {
  std::set<std::string> names;
  if (here_.tensor == 0) return names;
  for (const NamedTensor& parameter : distinct_parameters(model))
    if (!sharded_.shards.contains(parameter.name)) names.insert(parameter.name);
  return names;
}

std::function<double(double)> ModelPart::add_other_parts() {
  if (is_whole()) return {};
  return [this](double squared_norm) {
    const at::Tensor sum = at::empty({1}, at::kDouble);
    sum.data_ptr<double>()[0] = replica_ || here_.data == 0 ? squared_norm : 0;
    (replica_ ? *replica_ : world_).all_reduce_sum(sum, "the norm of the gradients");
    return sum.data_ptr<double>()[0];
  };
}

ModelPart::Agreed ModelPart::agree(double loss, bool stop) {
  if (is_whole()) return {loss, stop};
  return sum_up(here_.data == 0 && here_.tensor == 0 && makes_output(), loss, stop);
}

ModelPart::Agreed ModelPart::agree_replicas(double loss, bool stop) { return sum_up(here_.tensor == 0 && makes_output(), loss, stop); }

ModelPart::Agreed ModelPart::sum_up(bool tells_loss, double loss, bool stop) {
  const at::Tensor sums = at::empty({2}, at::kDouble);
  double* const number = sums.data_ptr<double>();
  number[0] = tells_loss ? loss : 0;
  number[1] = stop ? 1 : 0;
  world_.all_reduce_sum(sums, "loss and stop");
  return {number[0], number[1] > 0};
}

}  // namespace cohort
