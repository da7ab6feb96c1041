#pragma once
// What goes with what: one table, a row for each combination that no run can do. The command line, train(), Parallel, the strategies and
// the planner's search read it, and docs/guide/layouts.md shows it, so nothing is proposed that is then refused. What depends on the model
// or the machine is found where those are known; settings that would do nothing are in option_rules.h.

#include <optional>
#include <string>
#include <vector>

#include "cohort/job/option_rules.h"

namespace cohort {

struct Refusal {
  const char* what;     ///< For the documentation: "`zero` 1 to 3 with `compress`".
  const char* instead;  ///< "use zero=0 with compression, or compress=none"
  /// The sentence's first half, with values, where the situation asks for it; else empty.
  std::string (*found)(const Situation&);
};
const std::vector<Refusal>& refusals();

/// The sentence of the first row that the situation asks for.
std::optional<std::string> refusal_of(const Situation& situation);
/// The same for a layout alone: what any configuration refuses.
std::optional<std::string> refusal_of(const Layout& layout);
/// Error(kBadInput) with it.
void check_refusals(const Situation& situation);

}  // namespace cohort
