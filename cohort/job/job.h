#pragma once
// A configuration whose words have been read: what trains, compares and measures takes a Job, or the part it needs, and parses nothing
// again. Torch-free.

#include <optional>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/job/config.h"
#include "cohort/job/layout.h"
#include "cohort/job/learning_rate.h"
#include "cohort/job/option_rules.h"
#include "cohort/job/specs/batch_schedule.h"
#include "cohort/job/specs/devices.h"
#include "cohort/job/specs/injected_faults.h"
#include "cohort/job/specs/pruning.h"
#include "cohort/job/specs/small_specs.h"
#include "cohort/job/specs/virtual_spec.h"
#include "cohort/job/update_rule.h"

namespace cohort {

struct COHORT_PROGRAM_API Job {
  Config config;  ///< Its numbers, and its words as they were given: for messages and for the run's config.toml.
  Layout layout;
  bool one_host = true;  ///< All ranks are on one host, where they can share memory.
  Precision precision = Precision::kFp32;
  UpdateRule rule;
  LearningRate learning_rate;
  std::optional<Goal> goal;
  std::vector<InjectedFault> faults;
  Shares shares;
  Devices devices;
  std::optional<VirtualSpec> clock;      ///< Of workers that one process makes up; none: real ones.
  std::vector<BatchStage> batch_stages;  ///< How the batch grows.
  std::optional<Pruning> pruning;
  std::optional<QuantiseAware> rounding;  ///< Of weights while it trains.
  std::vector<HintPair> hints;            ///< Layers that are compared with the teacher's.
  double rate_factor = 1;                 ///< Of pushes to a server of gradients: what --remedy says.

  int num_ranks() const { return layout.num_ranks(); }
  /// For the table of options. `is_text`: the kind of data, where it is known.
  Situation situation(std::optional<bool> is_text) const;
};

/// For `workers` ranks, 0: as many as the layout has. Error(kBadInput) for the first word that means nothing.
COHORT_PROGRAM_API Job resolve(const Config& config, int workers, bool one_host = true);
/// With a layout that is known already, whatever config.layout says.
COHORT_PROGRAM_API Job resolve(const Config& config, const Layout& layout, bool one_host = true);

}  // namespace cohort
