#include "cohort/parallel/make_strategy.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/comm/group_internals.h"
#include "cohort/job/refusals.h"
#include "cohort/parallel/local/local_steps.h"
#include "cohort/parallel/shared_weights/shared_data_parallel.h"
#include "cohort/parallel/strategy/replicated.h"
#include "cohort/parallel/zero/zero_data_parallel.h"

namespace cohort {
namespace {

enum class Where { kHost, kDevices, kMixed };

/// Where the models of all ranks are, so that all choose alike. Collective.
Where where_is(const std::vector<at::Tensor>& parameters, Group& group) {
  const bool on_host = std::all_of(parameters.begin(), parameters.end(), [](const at::Tensor& parameter) { return parameter.is_cpu(); });
  const at::Tensor num_on_host = at::full({1}, on_host ? 1 : 0, at::kFloat);
  group.all_reduce_sum(num_on_host, "where the ranks' models lie");
  const auto num = static_cast<int>(*num_on_host.const_data_ptr<float>());
  return num == group.size() ? Where::kHost : num == 0 ? Where::kDevices : Where::kMixed;
}

}  // namespace

std::unique_ptr<Strategy> make_strategy(torch::nn::Module& module, Group group, const StrategyOptions& options) {
  if (const auto refused = refusal_of(Layout{.dp = group.size(), .zero = options.zero, .sync = options.sync, .compress = options.compress}))
    throw Error(ErrorCode::kBadInput, *refused);
  const std::vector<at::Tensor> parameters = module.parameters();
  const Where where = where_is(parameters, group);
  if (where != Where::kHost && options.compress != "none")
    fail(ErrorCode::kBadInput, "compress=", options.compress,
         " works on gradients in the host's memory; use compress=none with this device");
  if (is_local(options.sync)) {
    LocalStepsOptions local{.rule = options.rule,
                            .compress = options.compress,
                            .seed = options.seed,
                            .steps = options.sync.number,
                            .fragments = options.sync.fragments};
    local.outer = OuterOptimizer::of(options.sync, options.outer_lr, options.outer_momentum);
    return std::make_unique<LocalSteps>(module, std::move(group), local);
  }
  if (options.zero == 0 && where == Where::kHost && options.share_weights && options.compress == "none" && GroupInternals::arena(group))
    return std::make_unique<SharedDataParallel>(module, std::move(group), SharedDataParallelOptions{.rule = options.rule});
  // Updates on a GPU and on a CPU round differently, so replicas would drift apart: as in ZeRO 1 one rank updates each slice, and all use
  // its result.
  if (options.zero > 0 || where == Where::kMixed) {
    ZeroOptions zero{.stage = std::max(1, options.zero), .rule = options.rule};
    if (options.bucket_bytes > 0) zero.bucket_bytes = options.bucket_bytes;
    return std::make_unique<ZeroDataParallel>(module, std::move(group), zero);
  }
  DataParallelOptions parallel{.compress = options.compress, .seed = options.seed};
  if (options.bucket_bytes > 0) parallel.bucket_bytes = options.bucket_bytes;
  return std::make_unique<Replicated>(module, std::move(group), options.rule, parallel);
}

}  // namespace cohort
