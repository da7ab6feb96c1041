#pragma once
// What goes with what: one table, a row for each combination that no run can do. The command line, train(), Parallel, the strategies and
// the planner's search read it, and docs/guide/layouts.md shows it, so nothing is proposed that is then refused. What depends on the model
// or the machine is found where those are known; settings that would do nothing are in option_rules.h.

#include <optional>
#include <string>
#include <vector>

#include "cohort/job/option_rules.h"

namespace cohort {

/// Two things that no run can have together.
struct Refusal {
  const char* what;     ///< For the documentation: "`zero` 1 to 3 with `compress`".
  const char* instead;  ///< "use zero=0 with compression, or compress=none"
  std::string (*one)(const Situation&);
  std::string (*other)(const Situation&);  ///< Each returns the option or key with its value where the situation has it, else "".

  /// "--layout: zero=1 with compress=int8" where the situation has both, else "".
  std::string found(const Situation& situation) const;
};
const std::vector<Refusal>& refusals();

/// The error text of the first row that applies to the situation.
std::optional<std::string> refusal_of(const Situation& situation);
/// The error text for a layout with the default configuration.
std::optional<std::string> refusal_of(const Layout& layout);
/// Throws Error(kBadInput) with that text.
void check_refusals(const Situation& situation);

}  // namespace cohort
