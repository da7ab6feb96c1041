// Magnitude pruning while a model trains (Zhu and Gupta 2017, "To prune, or not to prune", arXiv 1710.01878), under any layout whose ranks
// know which weights they update. In a step that prunes, between the exchange of gradients and the update:
//
//   1. the weights that are the smallest of their tensor are chosen, by their values before this update, so that all together have the
//      schedule's sparsity (layer_sparsity.cpp); ranks that divide a tensor find them together (parallel/prune/smallest_weights.cpp)
//   2. each rank updates what it owns, as ever, and what is pruned, with its momentum, is zero behind it
//   (parallel/optimizer/shard_optimizer.cpp)
//   3. weights are gathered and read by others after that, so nobody ever sees a pruned weight
//
// From the first pruning on a weight that is zero stays zero. So the weights are their own mask: it is the same on every rank and layout,
// it is in every checkpoint, and a run that goes on from one needs nothing else.
//
// Cost: a pass over the weights a rank owns in each step; in those that prune 5 more, and 5 small messages.
#include "cohort/train/pruning/pruner.h"

#include <map>
#include <string>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/parallel/prune/smallest_weights.h"

namespace cohort {

Pruner::Pruner(const Pruning& pruning, const PruningSchedule& schedule, const PrunableModel& prunable, const LayerGraph& part,
               Strategy& strategy, Group group)
    : pruning_(pruning), schedule_(schedule), prunable_(prunable), strategy_(strategy), group_(std::move(group)) {
  const ShardOptimizer* const optimizer = strategy.optimizer();
  if (!optimizer)
    fail(ErrorCode::kBadInput, name_settings("--prune: this layout's workers update weights that others update too; use sync=step"));
  std::map<std::string, int64_t> segments;
  for (size_t i = 0; i < optimizer->size(); ++i) segments[optimizer->segment(i).parameter] = static_cast<int64_t>(i);
  std::map<std::string, bool> is_here;
  for (const NamedTensor& parameter : distinct_parameters(part)) is_here[parameter.name] = true;
  for (size_t place = 0; place < prunable.tensors.size(); ++place) {
    const std::string& name = prunable.tensors[place].name;
    if (!is_here.contains(name)) continue;
    places_.push_back(place);
    segments_.push_back(segments.contains(name) ? segments[name] : -1);
  }
}

void Pruner::begin_update(int64_t number) {
  if (!schedule_.has_begun(number)) return;
  ShardOptimizer& optimizer = *strategy_.optimizer();
  for (size_t i = 0; i < segments_.size() && !keeps_zeros_; ++i)
    if (segments_[i] >= 0) optimizer.keep_zeros(static_cast<size_t>(segments_[i]));
  keeps_zeros_ = true;
  if (const std::optional<double> sparsity = schedule_.at(number)) choose(*sparsity);
}

void Pruner::choose(double sparsity) {
  ShardOptimizer& optimizer = *strategy_.optimizer();
  const std::vector<double> sparsities = prunable_.sparsities(pruning_, sparsity);
  std::vector<DividedTensor> divided;
  for (size_t i = 0; i < places_.size(); ++i) {
    const PrunableTensor& whole = prunable_.tensors[places_[i]];
    DividedTensor tensor{
        .name = whole.name, .num_elements = whole.num_elements(), .own = {}, .begin = 0, .sparsity = sparsities[places_[i]]};
    if (segments_[i] >= 0) {
      const Segment& segment = optimizer.segment(static_cast<size_t>(segments_[i]));
      tensor.own = segment.weights.cpu();
      tensor.begin = segment.begin;
    }
    divided.push_back(std::move(tensor));
  }
  const std::vector<at::Tensor> keep =
      keep_all_but_smallest(divided, pruning_.granularity, strategy_.divides_optimizer() ? &group_ : nullptr);
  for (size_t i = 0; i < keep.size(); ++i) {
    if (segments_[i] < 0 || !keep[i].defined()) continue;
    const auto segment = static_cast<size_t>(segments_[i]);
    optimizer.prune(segment, keep[i].to(optimizer.segment(segment).weights.device()));
  }
  chose_ = true;
}

void Pruner::end_update() {
  for (size_t i = 0; i < segments_.size() && chose_; ++i)
    if (segments_[i] >= 0) strategy_.optimizer()->prune(static_cast<size_t>(segments_[i]), {});
  chose_ = false;
}

}  // namespace cohort
