#pragma once
// Is there a plan of Piper's class in which every stage keeps a time and every device its memory?

#include <chrono>
#include <vector>

#include "cohort/plan/public/piper_file.h"
#include "cohort/plan/search/downsets.h"
#include "cohort/plan/search/replicated_stages.h"
#include "cohort/plan/search/variant_choice.h"

namespace cohort {

struct PiperStage {
  size_t begin = 0, end = 0;     ///< Downsets before and after it.
  int replicas = 1, degree = 0;  ///< `degree`: index in PiperInstance::degrees.
  std::vector<int> variant;      ///< Of each node of the stage, ascending.
  double seconds = 0;
};

/// What one stage of a plan is made of, for one tensor-parallel degree.
class PiperStageCosts {
 public:
  PiperStageCosts(const PiperInstance& instance, const Downsets& sets, size_t begin, size_t end);

  /// Turns to a degree; false where a node has no variant for it.
  bool take_degree(int degree);
  /// The layers as they are on `replicas`; seconds of what all variants share.
  double shared_seconds(int replicas) const;
  std::vector<LayerVariants> layers(int replicas, int kept_micro_batches) const;
  /// False where no choice of variants can be within the limits: sums of each layer's least, in no time.
  bool may_fit(int replicas, int kept_micro_batches, double limit_seconds, double memory_bytes) const;

 private:
  struct Part {
    const PiperVariant* variant = nullptr;
    double sync_bytes = 0;
  };

  void add_least(const Part& a, const Part& b);

  const PiperInstance& instance_;
  const Downsets& sets_;
  size_t begin_, end_;
  double edge_bytes_ = 0;
  std::vector<int> nodes_, count_;
  std::vector<Part> parts_;  // Two a node.
  // Sums over the nodes of the least that a variant has of each.
  double least_seconds_ = 0, least_parameter_bytes_ = 0, least_kept_bytes_ = 0, least_fixed_bytes_ = 0;
};

enum class PiperVerdict { kPlan, kNone, kNotKnown };

struct PiperLimitResult {
  PiperVerdict verdict = PiperVerdict::kNone;
  std::vector<PiperStage> stages;
};

/// kNotKnown: out of time, or a choice of variants was too long.
PiperLimitResult search_piper_limit(const PiperInstance& instance, const Downsets& sets, const std::vector<double>& area_seconds,
                                    double limit_seconds, SearchClock::time_point deadline);

}  // namespace cohort
