#include "cohort/job/specs/goal.h"

#include <algorithm>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {

Goal parse_goal(const std::string& text, const std::string& more) {
  std::vector<std::string> metrics = {"val_error", "val_loss", "val_precision", "loss"};
  for (const std::string& name : split(more, ','))
    if (!trim(name).empty()) metrics.push_back(trim(name));
  const size_t at = text.find_first_of("<>");
  if (at == std::string::npos)
    fail(ErrorCode::kBadInput, name_settings("--goal '"), text, "': expected METRIC<VALUE, for example val_error<0.12");
  Goal goal{trim(text.substr(0, at)), text[at] == '<', 0};
  if (std::find(metrics.begin(), metrics.end(), goal.metric) == metrics.end())
    fail(ErrorCode::kBadInput, name_settings("--goal '"), text, "': unknown metric '", goal.metric, "'; metrics: ", join(metrics, " "),
         name_settings("; --metrics adds others"));
  const auto value = parse_number(trim(text.substr(at + 1)));
  if (!value) fail(ErrorCode::kBadInput, name_settings("--goal '"), text, "': '", trim(text.substr(at + 1)), "' is not a number");
  goal.value = *value;
  if (goal.metric == "val_error" && (goal.below ? goal.value <= 0 : goal.value < 0))
    fail(ErrorCode::kBadInput, name_settings("--goal '"), text, "': no error is below 0, so this is ", goal.below ? "never" : "always",
         " so; an error is a fraction, as in val_error<0.12");
  if (goal.metric == "val_precision" && goal.below)
    fail(ErrorCode::kBadInput, name_settings("--goal '"), text, "': higher is better for a precision; use val_precision>", goal.value);
  if (goal.metric == "val_precision" && (goal.value < 0 || goal.value >= 1))
    fail(ErrorCode::kBadInput, name_settings("--goal '"), text, "': a precision is a share from 0 to 1, so this is ",
         goal.value < 0 ? "always" : "never", " so; use a value such as val_precision>0.31");
  return goal;
}

bool Goal::reached(const std::map<std::string, double>& metrics) const {
  const auto found = metrics.find(metric);
  return found != metrics.end() && (below ? found->second < value : found->second > value);
}

}  // namespace cohort
