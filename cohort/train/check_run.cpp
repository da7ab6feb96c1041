#include "cohort/train/check_run.h"

#include "cohort/base/error.h"
#include "cohort/parallel/compressor.h"
#include "cohort/train/balance.h"

namespace cohort {

void check_run(const Config& config, const Layout& layout, int num_ranks) {
  check_compressor(layout.compress);
  parse_shares(config.shares, num_ranks);
  if (layout.compress == "none") return;
  const std::string what = concat("compress=", layout.compress);
  if (config.precision == "fp16")
    fail(ErrorCode::kBadInput, "--precision fp16 with ", what,
         " is not supported: what compression keeps for later would be in an old loss scale; use --precision bf16");
}

}  // namespace cohort
