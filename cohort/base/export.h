#pragma once
// Symbols that libcohort exports; all others are hidden (CMakeLists.txt).

/// The public API: cohort/cohort.h and the headers that it includes.
#define COHORT_API [[gnu::visibility("default")]]
/// Symbols that the program `cohort` uses beyond the public API. Not stable: both come from one build.
#define COHORT_PROGRAM_API [[gnu::visibility("default")]]
