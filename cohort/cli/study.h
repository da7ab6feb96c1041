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

/// What makes a study's results less than they seem (StudyData::warnings): before the results on standard output, one line each.
void print_warnings(const std::vector<std::string>& warnings, bool is_json);

/// --reference-batch B; 0 where it is not given.
double reference_batch(const Arguments& arguments);
/// Error(kBadInput) with those that there are where `reference`, unless 0, is none of the batch sizes that were measured.
void check_reference_batch(double reference, const std::set<double>& measured);

}  // namespace cohort
