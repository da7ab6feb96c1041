#include "cohort/train/model/strategy_options.h"

#include <algorithm>

namespace cohort {

StrategyOptions strategy_options(const Job& job) {
  const Config& config = job.config;
  // Several buckets or ZeRO units are in memory at once, so they are small if memory is limited.
  int64_t bucket_bytes = config.bucket_bytes;
  if (bucket_bytes == 0 && config.memory_limit > 0) bucket_bytes = std::clamp<int64_t>(config.memory_limit / 64, 64 << 10, 8 << 20);
  // Workers of a server do not exchange with one another, and simulated workers are not ranks.
  const SyncMode& sync = job.layout.sync;
  return {.zero = job.layout.zero,
          .rule = job.rule,
          .compress = has_server(sync) ? "none" : job.layout.compress,  // The server compresses what its workers send.
          .share_weights = config.weights != "private",
          .bucket_bytes = bucket_bytes,
          .seed = config.seed,
          .sync = is_local(sync) && config.virtual_time.empty() ? sync : SyncMode(),
          .outer_lr = config.outer_lr,
          .outer_momentum = config.outer_momentum};
}

}  // namespace cohort
