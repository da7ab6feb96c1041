#include "cohort/train/model/tensor_division.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

/// Of layers that were left whole for a reason: "conv1 (neither its 4 ...)", at most `most`.
std::string whole_layers(const ShardPlan& plan, size_t most) {
  std::vector<std::string> listed;
  size_t others = 0;
  for (const LayerPlacement& layer : plan.placements) {
    if (layer.placement != "whole" || layer.reason.empty()) continue;
    if (listed.size() < most) listed.push_back(concat(layer.layer, " (", layer.reason, ")"));
    else ++others;
  }
  if (others > 0) listed.push_back(concat(others, " more"));
  return join(listed, ", ");
}

/// ": hidden (column), output (row)", at most `most`: layers of which each rank has a part of the weights.
std::string divided_layers(const ShardPlan& plan, size_t most) {
  std::vector<std::string> listed;
  size_t others = 0;
  for (const LayerPlacement& layer : plan.placements) {
    if (layer.placement == "whole" || layer.placement == "divided") continue;
    if (listed.size() < most) listed.push_back(concat(layer.layer, " (", layer.placement, ")"));
    else ++others;
  }
  if (others > 0) listed.push_back(concat(others, " more"));
  return listed.empty() ? "" : ": " + join(listed, ", ");
}

}  // namespace

void check_division(const ShardPlan& plan, const std::string& model, const Layout& layout) {
  if (!plan.sequence_reason.empty())
    fail(ErrorCode::kBadInput, name_settings("--layout: sequence=1 divides nothing of "), model, ": ", plan.sequence_reason,
         "; leave it out");
  if (plan.num_divided > 0 || plan.divides_positions) return;
  // A module of a user's own: no degree would do.
  if (plan.placements.size() == 1 && plan.placements.front().reason.starts_with("there is no rule"))
    fail(ErrorCode::kBadInput, name_settings("--layout: tp="), layout.tp, " divides no layer of ", model,
         ", which is one layer: let its factory return a torch::nn::Sequential or a cohort::LayerGraph of its layers, or use dp");
  const std::string whole = whole_layers(plan, 3);
  if (whole.empty())
    fail(ErrorCode::kBadInput, name_settings("--layout: tp="), layout.tp, " divides no layer of ", model,
         ": none has a weight matrix that ranks could share; use dp or pp");
  fail(ErrorCode::kBadInput, name_settings("--layout: tp="), layout.tp, " divides no layer of ", model, ": ", whole,
       "; use a degree that divides them, or dp or pp");
}

DivisionRecord division_record(const ShardPlan& plan, const Layout& layout) {
  DivisionRecord division{
      .sentence = describe(plan, layout),
      .divided_weights = static_cast<double>(plan.num_divided) / static_cast<double>(std::max<int64_t>(1, plan.num_parameters))};
  for (const LayerPlacement& layer : plan.placements) division.layers.push_back({layer.layer, layer.placement, layer.reason});
  return division;
}

std::string describe(const ShardPlan& plan, const Layout& layout) {
  size_t divided = 0, whole = 0;
  for (const LayerPlacement& layer : plan.placements) {
    if (layer.placement != "whole") ++divided;
    else if (!layer.reason.empty()) ++whole;
  }
  const double share = 100.0 * static_cast<double>(plan.num_divided) / static_cast<double>(std::max<int64_t>(1, plan.num_parameters));
  return concat("tp=", layout.tp, " divides ", divided, " of ", divided + whole, divided + whole == 1 ? " layer" : " layers", " with ",
                std::round(10 * share) / 10, " % of the weights", divided_layers(plan, 6),
                whole > 0 ? "; whole: " + whole_layers(plan, 4) : "");
}

}  // namespace cohort
