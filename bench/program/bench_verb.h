#pragma once
// The verb `bench` and its actions, one file each.

#include <vector>

#include "cohort/cli/options/verb.h"

namespace cohort {

Verb bench_verb();

// Each action has options of its own, which bench_verb() adds to those that several share.

int bench_collectives_verb(const Arguments& arguments);
std::vector<VerbOption> bench_collectives_options();

int bench_handover_verb(const Arguments& arguments);

int bench_messages_verb(const Arguments& arguments);

int bench_pipeline_verb(const Arguments& arguments);
std::vector<VerbOption> bench_pipeline_options();

std::vector<VerbOption> bench_study_options();
int bench_study_verb(const Arguments& arguments);

std::vector<VerbOption> bench_sync_options();
int bench_sync_verb(const Arguments& arguments);

// Published planner instances, and forecasts compared with published measurements.

std::vector<VerbOption> bench_plan_options();
/// Solves each file and prints its line before the next.
int bench_plan_verb(const Arguments& arguments);

/// Without --format, which bench_plan_options() has.
std::vector<VerbOption> bench_forecast_options();
int bench_forecast_verb(const Arguments& arguments);

}  // namespace cohort
