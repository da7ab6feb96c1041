#pragma once
// A configuration with its specifications parsed. Torch-free.

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
  Config config;  ///< Numbers, and specifications as text for messages and the run's config.toml.
  Layout layout;
  bool one_host = true;  ///< All ranks can share memory.
  Precision precision = Precision::kFp32;
  UpdateRule rule;
  LearningRate learning_rate;
  std::optional<Goal> goal;
  std::vector<InjectedFault> faults;
  Shares shares;
  Devices devices;
  std::optional<VirtualSpec> clock;      ///< Simulated workers; nullopt: real ones.
  std::vector<BatchStage> batch_stages;  ///< How the batch grows.
  std::optional<Pruning> pruning;
  std::optional<QuantiseAware> rounding;  ///< Of quantization-aware training.
  std::vector<HintPair> hints;            ///< Layers to compare with the teacher's.
  double rate_factor = 1;                 ///< Of pushes to a parameter server (--remedy).

  int num_ranks() const { return layout.num_ranks(); }
  /// Input of option rules and refusals. `is_text`: the kind of data, if known.
  Situation situation(std::optional<bool> is_text) const;
};

/// For `workers` ranks; 0: as many as the layout has. Error(kBadInput) for the first invalid specification.
COHORT_PROGRAM_API Job resolve(const Config& config, int workers, bool one_host = true);
/// With a given layout instead of config.layout.
COHORT_PROGRAM_API Job resolve(const Config& config, const Layout& layout, bool one_host = true);

}  // namespace cohort
