#pragma once
// Which schedule a layout means, for any number of micro-batches.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/job/layout.h"
#include "cohort/plan/cost/stage_graph.h"
#include "cohort/schedule/simulate.h"

namespace cohort {

/// The layout's named schedule where the stages lie as that one has them, the table of its file, or one made for this placement
/// (make_graph_schedule). Immutable.
class Scheduler {
 public:
  /// `ranks_of_stage`: ranks of the pipeline's group that run each stage. `seconds`: what the stages take, where schedules that split the
  /// backward are to be ordered by that. Error(kBadInput) for a name that is none or a file that is bad.
  Scheduler(const Layout& layout, std::vector<std::pair<int, int>> edges, std::vector<std::vector<int>> ranks_of_stage,
            const StageSeconds& seconds = {});

  Schedule operator()(int num_micro_batches) const;

 private:
  bool lies_as_named() const;

  std::string name_;
  int num_workers_;
  std::vector<std::pair<int, int>> edges_;
  std::vector<std::vector<int>> ranks_of_stage_;
  Schedule file_;
  bool by_name_ = false;
  std::shared_ptr<const StageCosts> costs_;  // Null: all alike.
};

}  // namespace cohort
