#include "cohort/train/model/strategy_options.h"

#include <algorithm>

namespace cohort {

StrategyOptions strategy_options(const Job& job) {
  const Config& config = job.config;
  // Units of ZeRO and buckets are held whole several times over: small ones where memory is short.
  int64_t bucket_bytes = config.bucket_bytes;
  if (bucket_bytes == 0 && config.memory_limit > 0) bucket_bytes = std::clamp<int64_t>(config.memory_limit / 64, 64 << 10, 8 << 20);
  // Workers of an update server or of a queue of models exchange nothing with one another, and those of the virtual clock are no ranks.
  const SyncMode& sync = job.layout.sync;
  return {.zero = job.layout.zero,
          .rule = job.rule,
          .compress = has_server(sync) ? "none" : job.layout.compress,  // What they send to the server is the server's affair.
          .share_weights = config.weights != "private",
          .bucket_bytes = bucket_bytes,
          .seed = config.seed,
          .sync = is_local(sync) && config.virtual_time.empty() ? sync : SyncMode(),
          .outer_lr = config.outer_lr,
          .outer_momentum = config.outer_momentum};
}

}  // namespace cohort
