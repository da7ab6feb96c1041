#pragma once
// A model divided over the ranks of a mesh: this rank's stages, its part of their tensors, and the groups involved. Data parallelism over
// `data()` completes it, with any Strategy of the model as left here. Without pp and tp the part is the whole model and `data()` spans all
// ranks; nothing here then sends a message.

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
  /// Collective over `world`, whose size is layout.num_ranks(). `model`, built alike on all ranks, loses the parts of other ranks and must
  /// outlive this object.
  ModelPart(LayerGraph& model, Group world, const Layout& layout, const StageAssignment& stages);

  int rank() const { return world_.rank(); }
  const Mesh& mesh() const { return mesh_; }
  const MeshPoint& here() const { return here_; }
  /// This rank's data-parallel peers, with the same part of the model.
  const Group& data() const { return data_; }
  const Group& tensor() const { return tensor_; }
  /// Null without pipeline workers.
  PipelineRunner* pipeline() { return pipeline_.get(); }
  const ShardedModel& sharded() const { return sharded_; }
  /// Whether every rank has the whole model.
  bool is_whole() const { return data_.size() == world_.size(); }
  /// "data: job ranks 0 2; pipeline: job ranks 0 1", since messages number a group's ranks from 0. "" where they are the job's.
  std::string describe_groups() const;
  bool makes_output() const { return !pipeline_ || pipeline_->has_last_stage(); }

  /// The division of the global batch: parallel pipelines, and this rank's pipeline.
  int num_pipelines() const { return mesh_.is_uniform() ? mesh_.data_size(0) : 1; }
  int pipeline_index() const { return mesh_.is_uniform() ? here_.data : 0; }

  /// The first rank of those that compute the same layers on the same samples, which must draw the same random numbers.
  int random_stream() const { return mesh_.rank_at({here_.data, here_.pipe, 0}); }

  /// The model's output with all classes, without gradients. Collective over tensor().
  at::Tensor whole_output(const at::Tensor& output) const;

  /// Parameters whose gradient norm is counted on another rank.
  std::set<std::string> counted_elsewhere(const LayerGraph& model) const;
  /// For StepOptions::add_other_parts; empty where there are none. With local steps: within this replica only.
  std::function<double(double)> add_other_parts();
  /// Sums over the mesh of values that data-parallel peers agree on; the loss comes from one rank that computes the model's output.
  /// Collective over the world, unless every rank has the whole model.
  struct Agreed {
    double loss = 0;
    bool stop = false;
  };
  Agreed agree(double loss, bool stop);
  /// With local steps: the sum of the replicas' losses. Collective over the world.
  Agreed agree_replicas(double loss, bool stop);

 private:
  void make_groups(const Layout& layout);
  void make_pipeline(LayerGraph& model, const Layout& layout, const StageAssignment& stages);

  Agreed sum_up(bool tells_loss, double loss, bool stop);

  Group world_, data_, tensor_;
  std::optional<Group> replica_;  ///< Ranks with this data coordinate, for local steps.
  /// Job ranks of this rank's pipeline; all replicas where stages have different numbers of them. Empty without pipeline workers.
  std::vector<int> pipeline_ranks_;
  Mesh mesh_;
  MeshPoint here_;
  ShardedModel sharded_;
  std::unique_ptr<PipelineRunner> pipeline_;
};

}  // namespace cohort
