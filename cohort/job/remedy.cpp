#include "cohort/job/remedy.h"

#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {

const std::vector<RemedyRow>& remedy_rows() {
  static const std::vector<RemedyRow> table = {
      {"rate", "FACTOR", "all learning rates times FACTOR", kNeedsNumber, 1e-9, 1, false},
      {"staleness", "", "the rate of a push divided by the steps that it is late", 0, 0, 0, false},
      {"compensate", "LAMBDA", "the gradient corrected to first order for what the weights moved", 0.04, 1e-9, 1e6, false},
      {"lookahead", "", "workers get the weights where momentum will have taken them", 0, 0, 0, true},
      {"drop", "STEPS", "a push that is more than STEPS late is dropped, and its samples are done again", kNeedsNumber, 0, 1e9, false},
      {"heloco", "", "a late change of diloco's weights is turned towards the outer momentum where it goes against it", 0, 0, 0, false}};
  return table;
}

Remedy parse_remedy(const std::string& text) {
  if (text.empty()) return {};
  const size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  std::vector<std::string> names, forms;
  for (const RemedyRow& row : remedy_rows()) {
    names.emplace_back(row.name);
    const bool is_optional = row.standard > 0;
    forms.push_back(*row.value_name == 0 ? row.name : concat(row.name, is_optional ? "[:" : ":", row.value_name, is_optional ? "]" : ""));
    if (name != row.name) continue;
    const bool takes_number = *row.value_name != 0;
    if (colon == std::string::npos && (!takes_number || is_optional)) return {name, row.standard};
    const auto value = colon == std::string::npos ? std::nullopt : parse_number(text.substr(colon + 1));
    if (!takes_number || !value || !(*value >= row.least) || *value > row.most)
      fail(ErrorCode::kBadInput, name_settings("--remedy "), text, ": expected ", forms.back(),
           takes_number ? concat(" with ", row.value_name, " from ", row.least, " to ", row.most) : ", which takes no number");
    return {name, *value};
  }
  fail(ErrorCode::kBadInput, name_settings("--remedy "), text, ": no remedy '", name, "'", did_you_mean(name, names),
       "; there are: ", join(forms, " "));
}

}  // namespace cohort
