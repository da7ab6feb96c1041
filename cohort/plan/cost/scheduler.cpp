#include "cohort/plan/cost/scheduler.h"

namespace cohort {

Scheduler::Scheduler(const Layout& layout, std::vector<std::pair<int, int>> edges, std::vector<std::vector<int>> ranks_of_stage,
                     const StageSeconds& seconds)
    : name_(layout.schedule), num_workers_(layout.pp), edges_(std::move(edges)), ranks_of_stage_(std::move(ranks_of_stage)) {
  if (name_.ends_with(".json")) file_ = read_schedule_file(name_);
  else by_name_ = lies_as_named();
  if (name_.starts_with("zb") && !seconds.empty())
    costs_ = std::make_shared<StageCosts>(StageCosts{seconds.forward, seconds.backward_input, seconds.backward_weight});
}

Schedule Scheduler::operator()(int num_micro_batches) const {
  if (file_.num_micro_batches == num_micro_batches && num_micro_batches > 0) return file_;
  if (by_name_)
    return make_schedule(name_,
                         {.num_ranks = num_workers_, .num_micro_batches = num_micro_batches, .edges = edges_, .costs = costs_.get()});
  // Also for the last batch of an epoch, which may have fewer micro-batches than a user's table.
  return make_graph_schedule(edges_, ranks_of_stage_, num_micro_batches, name_.starts_with("zb"), costs_.get());
}

bool Scheduler::lies_as_named() const {
  if (num_stages_of(name_, num_workers_) != static_cast<int>(ranks_of_stage_.size())) return false;
  const auto probe = ranks_of_stages(make_schedule(name_, {.num_ranks = num_workers_, .num_micro_batches = 1, .edges = edges_}));
  for (size_t stage = 0; stage < probe.size(); ++stage)
    if (ranks_of_stage_[stage] != std::vector<int>{probe[stage][0]}) return false;
  return true;
}

}  // namespace cohort
