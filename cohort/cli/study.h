#pragma once
// The actions of `cohort study`, one file each; study.cpp has the table of their options.

#include <set>
#include <string>
#include <vector>

#include "cohort/cli/options/verb.h"

namespace cohort {

int study_run(const Arguments& arguments);     ///< SPEC.toml --out DIR
int study_fit(const Arguments& arguments);     ///< TABLE.csv | DIR
int study_report(const Arguments& arguments);  ///< DIR...
int study_export(const Arguments& arguments);  ///< DIR --out FOLDER
int study_import(const Arguments& arguments);  ///< FOLDER

/// Prints what weakens a study's results (StudyData::warnings) on standard output, one line each.
void print_warnings(const std::vector<std::string>& warnings, bool is_json);

/// --reference-batch B; 0 if it was not given.
double reference_batch(const Arguments& arguments);
/// Error(kBadInput), which lists the measured batch sizes, if `reference` is neither 0 nor one of them.
void check_reference_batch(double reference, const std::set<double>& measured);

}  // namespace cohort
