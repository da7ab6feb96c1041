#pragma once
// The ladder of plan/ladder.h on stdout. Internal to this folder.

#include <string>

#include "cohort/cli/options/verb.h"
#include "cohort/plan/plan.h"

namespace cohort {

/// Where nothing of `request` fits, or --ladder asked for it: as text behind `title`, or as a line of JSON. Ctrl-C ends it with what there
/// is. Returns whether any way out fits.
bool print_ladder(const Arguments& arguments, const SearchRequest& request, const std::string& title);

/// The same where a plan failed: what is wrong with the ladder itself is not said.
void print_ladder_after(const Arguments& arguments, const SearchRequest& request, const std::string& title);

/// After a plan: where the same search without a limit of memory finds one that is at least kTight times as fast, says so, with the ladder.
void print_ladder_if_tight(const Arguments& arguments, const Plan& plan);

/// What `cohort plan --ladder` reads but for --ladder itself is fine; Error(kBadInput) for options that would do nothing beside it.
void check_ladder_arguments(const Arguments& arguments);

}  // namespace cohort
