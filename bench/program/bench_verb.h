#pragma once
// `cohort bench`: what the program has and the library has not.

#include <vector>

#include "cohort/cli/options/verb.h"

namespace cohort {

Verb bench_verb();

// `cohort bench collectives`.

/// Runs it; --rounds and the settings --workers, --json and --timeout are shared with the other benchmarks.
int bench_collectives_verb(const Arguments& arguments);
/// Its own options, to be added to those of `bench`.
std::vector<VerbOption> bench_collectives_options();

// `cohort bench handover`.

/// Runs it; takes --rounds and the settings --backend and --json.
int bench_handover_verb(const Arguments& arguments);

// `cohort bench messages`.

/// Runs it; takes --rounds and the setting --json.
int bench_messages_verb(const Arguments& arguments);

// `cohort bench pipeline`.

/// Runs it; --workload, --rounds, --peers, --python and the settings --workers, --steps, --optimizer and --json are shared with `bench
/// step`.
int bench_pipeline_verb(const Arguments& arguments);
/// Its own options, to be added to those of `bench`.
std::vector<VerbOption> bench_pipeline_options();

// `cohort bench study`.

/// Options of its own; bench has --rounds, --peers and --python, and the settings --data, --lr, --steps, --optimizer and --json.
std::vector<VerbOption> bench_study_options();
int bench_study_verb(const Arguments& arguments);

// `cohort bench sync`.

std::vector<VerbOption> bench_sync_options();
/// Runs it; takes --workload, those options and the settings workers, steps, json.
int bench_sync_verb(const Arguments& arguments);

// `cohort bench plan` and `cohort bench forecast`: the planner on published instances, and forecasts beside published measurements.

std::vector<VerbOption> bench_plan_options();
/// Solves each file and prints a line for it, at once.
int bench_plan_verb(const Arguments& arguments);

/// But for --format, which `bench plan` has too.
std::vector<VerbOption> bench_forecast_options();
/// Takes --format, --fit and --json, and files.
int bench_forecast_verb(const Arguments& arguments);

}  // namespace cohort
