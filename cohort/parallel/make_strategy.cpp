#include "cohort/parallel/make_strategy.h"

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/comm/group_internals.h"
#include "cohort/job/refusals.h"
#include "cohort/parallel/one_copy/shared_data_parallel.h"
#include "cohort/parallel/replicated.h"
#include "cohort/parallel/zero/zero_data_parallel.h"

namespace cohort {

std::unique_ptr<Strategy> make_strategy(torch::nn::Module& module, Group group, const StrategyOptions& options) {
  if (const auto refused = refusal_of(Layout{.dp = group.size(), .zero = options.zero, .compress = options.compress}))
    throw Error(ErrorCode::kBadInput, *refused);
  const std::vector<at::Tensor> parameters = module.parameters();
  const bool on_host = std::all_of(parameters.begin(), parameters.end(), [](const at::Tensor& parameter) { return parameter.is_cpu(); });
  if (options.zero == 0 && on_host && options.share_weights && options.compress == "none" && GroupInternals::arena(group))
    return std::make_unique<SharedDataParallel>(module, std::move(group), SharedDataParallelOptions{.rule = options.rule});
  if (options.zero > 0) {
    ZeroOptions zero{.stage = options.zero, .rule = options.rule};
    if (options.bucket_bytes > 0) zero.bucket_bytes = options.bucket_bytes;
    return std::make_unique<ZeroDataParallel>(module, std::move(group), zero);
  }
  DataParallelOptions parallel{.compress = options.compress, .seed = options.seed};
  if (options.bucket_bytes > 0) parallel.bucket_bytes = options.bucket_bytes;
  return std::make_unique<Replicated>(module, std::move(group), options.rule, parallel);
}

}  // namespace cohort
