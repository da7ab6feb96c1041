#pragma once
// How one model spans the ranks: the value behind `--layout`. Torch-free; later files (plans) hold it as JSON.

#include <cstdint>
#include <string>

#include "cohort/base/json_fwd.h"

namespace cohort {

struct Layout {
  int dp = 1;                     ///< Data-parallel degree.
  int pp = 1;                     ///< Pipeline stages.
  int tp = 1;                     ///< Tensor-parallel degree.
  int zero = 0;                   ///< ZeRO stage, 0-3.
  std::string sync = "step";      ///< step, async, stale:K, local:H, diloco:H, queue.
  std::string schedule = "1f1b";  ///< Pipeline schedule.
  int microbatches = 1;
  std::string recompute = "none";
  std::string compress = "none";
  std::string split = "auto";

  int num_ranks() const { return dp * pp * tp; }
};

/// Reads `auto`, `single` or `KEY=VALUE,...`. `workers` is the number of ranks asked for, 0 where nothing was said; `auto` is data
/// parallelism over all of them, and a layout of other size than `workers` is refused. What this version cannot do yet is refused with a
/// sentence that says what to use instead. Error(kBadInput).
Layout parse_layout(const std::string& text, int workers);

/// "dp=2" and so on: only what differs from one process.
std::string to_text(const Layout& layout);
Json to_json(const Layout& layout);

}  // namespace cohort
