// --layout auto chooses a layout, so an option is wrong only where it is wrong in each that may be chosen. One of each kind is tried; what
// is asked of the model itself needs the model, and so a process that may load LibTorch's threads. Cost: one fork and one model.
#include "cohort/tune/check_auto.h"

#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/train/check_run.h"
#include "cohort/train/initial_model.h"
#include "cohort/train/step/parallelize.h"
#include "cohort/tune/measure_in_ranks.h"

namespace cohort {
namespace {

std::vector<Layout> kinds_of_layouts(int num_ranks, bool may_be_fewer) {
  std::vector<Layout> kinds = {{.dp = num_ranks}};
  if (num_ranks == 1) return kinds;
  kinds.push_back({.dp = num_ranks, .zero = 1});
  kinds.push_back({.pp = num_ranks});
  kinds.push_back({.tp = num_ranks});
  if (may_be_fewer) kinds.emplace_back();
  return kinds;
}

bool is_refused(const Config& config, const Layout& layout, std::optional<bool> is_text) {
  try {
    check_run(resolve(config, layout), is_text);
    return false;
  } catch (const Error&) {
    return true;
  }
}

bool has_batch_norm(const LayerGraph& model) {
  const auto modules = model.modules(/*include_self=*/false);
  return std::any_of(modules.begin(), modules.end(), [](const auto& module) {
    return module->template as<torch::nn::BatchNorm1dImpl>() || module->template as<torch::nn::BatchNorm2dImpl>() ||
           module->template as<torch::nn::BatchNorm3dImpl>();
  });
}

/// Of weights and gradients.
int64_t trained_bytes(const LayerGraph& model) {
  int64_t bytes = 0;
  for (const NamedTensor& named : distinct_parameters(model))
    bytes += static_cast<int64_t>(named.tensor.nbytes()) * (named.tensor.requires_grad() ? 2 : 1);
  return bytes;
}

/// ZeRO 3, stages and divided layers give each rank a part of them; less than equal parts fits nowhere.
void check_weights_fit(const Config& config, int num_ranks, int64_t bytes) {
  const int64_t least = bytes / num_ranks;
  if (config.memory_limit == 0 || least <= config.memory_limit) return;
  fail(ErrorCode::kInfeasible, "no layout of at most ", num_ranks, num_ranks == 1 ? " device" : " devices", " fits into ",
       config.memory_limit, " bytes a rank: weights and gradients of ", config.model, " alone are ", bytes, " bytes, ", least,
       " for each rank at least; give each rank more, or take a smaller model");
}

}  // namespace

void check_any_layout(const Config& config, int num_ranks, bool may_be_fewer, std::optional<bool> is_text) {
  const std::vector<Layout> kinds = kinds_of_layouts(num_ranks, may_be_fewer);
  for (const Layout& layout : kinds)
    if (!is_refused(config, layout, is_text)) return;
  check_run(resolve(config, kinds.front()), is_text);
}

void check_model_for_auto(const Job& job, const DataSet& data, int num_ranks, bool forks) {
  const auto checked_bytes = [&] {
    const std::shared_ptr<LayerGraph> model = initial_model(job.config, data.train->shape()).model;
    check_model(job.config, Layout(), *model);
    check_goal(job, *model, *data.validation);
    check_batch_norm(job.config, has_batch_norm(*model));
    return trained_bytes(*model);
  };
  const int64_t bytes =
      forks ? measure_in_ranks(1, "auto", [&](const World&, Group&) { return Json(checked_bytes()); }).get<int64_t>() : checked_bytes();
  check_weights_fit(job.config, num_ranks, bytes);
}

}  // namespace cohort
