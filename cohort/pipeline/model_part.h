#pragma once
// A model spread over the ranks of a mesh: this rank's stages and its part of their tensors, and the groups that belong to them. What is
// left to do is data parallelism over `data()`: any Strategy of the model as this leaves it. Where a layout has neither pp nor tp the part
// is all of the model and `data()` is everybody: nothing here then sends a message.

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/comm/group.h"
#include "cohort/job/layout.h"
#include "cohort/pipeline/pipeline_runner.h"
#include "cohort/schedule/stage_graph.h"
#include "cohort/tensor/shard_graph.h"
#include "cohort/world/mesh.h"

namespace cohort {

class LayerGraph;

class COHORT_PROGRAM_API ModelPart {
 public:
  /// Collective over `world`, whose size is layout.num_ranks(). `model` is built alike on all ranks; parts that are other ranks' are taken
  /// out of it. It must outlive this object.
  ModelPart(LayerGraph& model, Group world, const Layout& layout, const StageAssignment& stages);

  int rank() const { return world_.rank(); }
  const Mesh& mesh() const { return mesh_; }
  const MeshPoint& here() const { return here_; }
  /// Ranks with the same part of the model; this one's data-parallel peers.
  const Group& data() const { return data_; }
  const Group& tensor() const { return tensor_; }
  /// Null without pipeline workers.
  PipelineRunner* pipeline() { return pipeline_.get(); }
  const ShardedModel& sharded() const { return sharded_; }
  /// Every rank has the whole model.
  bool is_whole() const { return data_.size() == world_.size(); }
  /// "data: job ranks 0 2; pipeline: job ranks 0 1": messages of a group number its ranks from 0. "" where they are the job's.
  std::string describe_groups() const;
  bool makes_output() const { return !pipeline_ || pipeline_->has_last_stage(); }

  /// Where the global batch is cut: pipelines that run side by side, and which of them this rank is in.
  int num_pipelines() const { return mesh_.is_uniform() ? mesh_.data_size(0) : 1; }
  int pipeline_index() const { return mesh_.is_uniform() ? here_.data : 0; }

  /// The first rank of those that compute the same layers on the same samples: what they draw must be the same.
  int random_stream() const { return mesh_.rank_at({here_.data, here_.pipe, 0}); }

  /// The model's output with all classes, without gradients. Collective over tensor().
  at::Tensor whole_output(const at::Tensor& output) const;

  /// Parameters whose gradient counts on another rank.
  std::set<std::string> counted_elsewhere(const LayerGraph& model) const;
  /// For StepOptions::add_other_parts; empty where there are none. Where replicas train by themselves: of this one's parts alone.
  std::function<double(double)> add_other_parts();
  /// Sums over the mesh of numbers that all data-parallel peers agree on, the loss from one rank that makes the model's output. Collective
  /// over the world, unless every rank has the whole model.
  struct Agreed {
    double loss = 0;
    bool stop = false;
  };
  Agreed agree(double loss, bool stop);
  /// Where replicas train by themselves: the sum over them of the loss, each with its own. Collective over the world.
  Agreed agree_replicas(double loss, bool stop);

 private:
  void make_groups(const Layout& layout);
  void make_pipeline(LayerGraph& model, const Layout& layout, const StageAssignment& stages);

  Agreed sum_up(bool tells_loss, double loss, bool stop);

  Group world_, data_, tensor_;
  std::optional<Group> replica_;  ///< Ranks with this data coordinate, where their replica trains by itself.
  /// Job ranks of this one's pipeline; all replicas where stages have different numbers of them. Empty without pipeline workers.
  std::vector<int> pipeline_ranks_;
  Mesh mesh_;
  MeshPoint here_;
  ShardedModel sharded_;
  std::unique_ptr<PipelineRunner> pipeline_;
};

}  // namespace cohort
