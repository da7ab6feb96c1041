#pragma once
// What leaves libcohort: nothing else of it can be linked with (CMakeLists.txt compiles with hidden symbols).

/// The public face: what cohort/cohort.h and the headers that it includes declare.
#define COHORT_API [[gnu::visibility("default")]]
/// What the benchmarks of the program `cohort` use beyond that. The program and the library are of one build; no promise to others.
#define COHORT_PROGRAM_API [[gnu::visibility("default")]]
