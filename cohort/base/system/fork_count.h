#pragma once

namespace cohort {

/// How often this process and those that it comes from have been forked since they called it first: a number that a child does not share
/// with its parent. One load.
int fork_count();

}  // namespace cohort
