#include "cohort/train/check_run.h"

#include "cohort/base/error.h"
#include "cohort/parallel/compressor.h"
#include "cohort/schedule/check.h"
#include "cohort/train/balance.h"
#include "cohort/train/noise_meter.h"

namespace cohort {

static void check_model_parallel(const Config& config, const Layout& layout) {
  if (!layout.is_model_parallel()) return;
  const auto refuse = [](bool asked, const std::string& what, const std::string& instead) {
    if (asked) fail(ErrorCode::kBadInput, what, " with pp or tp is not supported; ", instead);
  };
  refuse(config.device != "cpu", "--device " + config.device,
         "stages and divided layers exchange through the host's memory: use --device cpu");
  refuse(config.shares != "equal", "--shares " + config.shares,
         "use equal shares, or stages with more replicas in a layout file ({\"stages\": [{\"layers\": [...], \"dp\": 2}, ...]})");
  refuse(config.sync_batch_norm && layout.tp > 1, "--sync-batch-norm", "use norm=ghost, group or none, or dp and pp alone");
  refuse(config.label_smoothing > 0 && layout.tp > 1, concat("--label-smoothing ", config.label_smoothing),
         "the loss over divided classes is not smoothed: use dp and pp alone");
  if (layout.pp == 1) return;
  if (layout.schedule.ends_with(".json")) check_schedule(read_schedule_file(layout.schedule));
  else num_stages_of(layout.schedule, layout.pp);  // Refuses what is no schedule.
}

void check_run(const Config& config, const Layout& layout, int num_ranks) {
  check_compressor(layout.compress);
  parse_shares(config.shares, num_ranks);
  check_model_parallel(config, layout);
  check_noise_scale(config, layout, num_ranks);
  if (layout.compress == "none") return;
  const std::string what = concat("compress=", layout.compress);
  if (config.precision == "fp16")
    fail(ErrorCode::kBadInput, "--precision fp16 with ", what,
         " is not supported: what compression keeps for later would be in an old loss scale; use --precision bf16");
}

}  // namespace cohort
