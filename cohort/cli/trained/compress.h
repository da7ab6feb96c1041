#pragma once
// Actions of `cohort compress`.

#include <optional>

#include "cohort/cli/options/verb.h"

namespace cohort {

/// --max-error-increase: "0.5%" is 0.005.
std::optional<double> error_increase(const Arguments& arguments);

int run_compress_search(const Arguments& arguments);

}  // namespace cohort
