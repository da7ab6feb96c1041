#pragma once
// Creates the strategy of a layout.

#include <torch/nn/module.h>

#include <memory>
#include <string>

#include "cohort/base/export.h"
#include "cohort/comm/group.h"
#include "cohort/job/specs/sync_mode.h"
#include "cohort/parallel/strategy/strategy.h"

namespace cohort {

struct StrategyOptions {
  int zero = 0;  ///< ZeRO stage, 0 to 3.
  UpdateRule rule;
  std::string compress = "none";                ///< See parallel/compress/compressor.h.
  bool share_weights = true;                    ///< zero 0: shared weights on a host where all ranks share memory.
  int64_t bucket_bytes = 0;                     ///< 0: the default.
  uint64_t seed = 1;                            ///< Of compressors.
  SyncMode sync;                                ///< step, local or diloco.
  double outer_lr = 0.7, outer_momentum = 0.9;  ///< For diloco.
};

/// Collective. The module must outlive the strategy. Error(kBadInput) for incompatible options.
COHORT_PROGRAM_API std::unique_ptr<Strategy> make_strategy(torch::nn::Module& module, Group group, const StrategyOptions& options);

}  // namespace cohort
