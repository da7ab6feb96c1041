#pragma once
// Measurements with several ranks of this machine: pipelines, links, memory and rates, and which ranks are equally fast.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/base/text/json_fwd.h"
#include "cohort/comm/group.h"
#include "cohort/pipeline/pipeline_runner.h"
#include "cohort/plan/profile/cluster.h"
#include "cohort/plan/profile/model_profile.h"
#include "cohort/schedule/simulate.h"
#include "cohort/world/world.h"

namespace cohort {

/// Runs `measure` in `num_ranks` forked ranks with one compute thread each and returns what rank 0 returned. The calling process must have
/// one thread. Error with the code of the rank that failed first and no text: its message is on stderr.
COHORT_PROGRAM_API Json measure_in_ranks(int num_ranks, const std::string& backend,
                                         const std::function<Json(const World& world, Group& group)>& measure);

// Times steps of a pipeline on all its ranks at once.

/// Single-threaded; every rank of `group` makes the same calls. References must outlive it. The ranks share the clock of one host.
class COHORT_PROGRAM_API PipelineMeter {
 public:
  PipelineMeter(PipelineRunner& pipeline, Group group);
  ~PipelineMeter();
  PipelineMeter(const PipelineMeter&) = delete;

  /// Times one step, which runs the pipeline once, from a barrier to the end of the last rank.
  void step(const std::function<void()>& run);

  struct Result {
    double step_seconds = 0;  ///< Median.
    double bubble = 0;        ///< Median: idle time / (ranks x time from the first action to the last); sends count as busy.
    Timeline last;            ///< The last step without waits; seconds from its first action.
  };
  /// Collective; the same on every rank.
  Result result();

 private:
  struct Span {
    double start = 0, end = 0, busy = 0;
  };

  PipelineRunner& pipeline_;
  Group group_;
  std::vector<TimedAction> actions_;  // Actions of the last step.
  std::vector<double> step_seconds_;
  std::vector<Span> spans_;  // One per step.
};

// The machine of this group's ranks: its links, memory and rates, and which ranks are equally fast.

struct MachineToMeasure {
  std::string device;          ///< Name of the kind of device.
  int64_t reserved_bytes = 0;  ///< Resident bytes of a rank besides its tensors; at most half of its memory counts.
  std::vector<std::string> precisions;
};

/// A host with one device per rank. Collective; each rank gets its own measurement.
Cluster measure_machine(Group& group, const MachineToMeasure& what);

/// Classes of equally fast ranks. `seconds` are [rank][size][round], of one pass over the model, in rounds that all ranks begin together.
class SpeedClasses {
 public:
  static constexpr double kSlower = 1.1;       ///< A rank is slower than another if it takes this many times its seconds
  static constexpr double kMostRounds = 0.75;  ///< in this share of the rounds; a hiccup affects one round, a slow core all.

  explicit SpeedClasses(const std::vector<std::vector<std::vector<double>>>& seconds);

  int num_classes() const { return static_cast<int>(first_rank_.size()); }
  /// The class of each rank; class 0 is that of rank 0, the others follow in rank order.
  const std::vector<int>& of_rank() const { return of_rank_; }
  /// The rank that represents its class.
  int rank_of(int speed_class) const { return first_rank_[static_cast<size_t>(speed_class)]; }
  /// The factor to the fastest rank.
  double times_slower(int speed_class) const { return times_slower_[static_cast<size_t>(speed_class)]; }

 private:
  std::vector<int> of_rank_, first_rank_;
  std::vector<double> times_slower_;
};

// Ranks of one machine that are not equally fast become kinds of device, so that a plan can give them other shares or stages.

/// `profile` is this rank's measurement, on a cluster of one kind of device; `whole_seconds` are its passes over the model by size and
/// round. Rank 0's profile gets a kind of device for each further class, with the points of its rank, and the kind of each rank; other
/// ranks' profiles lose their points. Collective.
void divide_by_speed(ModelProfile& profile, const std::vector<std::vector<double>>& whole_seconds, Group& group);

}  // namespace cohort
