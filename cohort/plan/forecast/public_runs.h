#pragma once
// Published tables of measured steps (public_runs.cpp; formats: docs/formats/measured_steps.md). Torch-free.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/plan/forecast/fit_machine.h"

namespace cohort {

struct PublicRun {
  int64_t row = 0;  ///< Of the file, from 1; the header does not count.
  MeasuredRun measured;
  std::string machine;  ///< Runs of one were made on the same kind of device: what is before its first blank is a name for known_machine().
  std::string choice;   ///< Runs of one choice are plans of the same training, of which a planner takes one.
  double samples = 1;   ///< By which seconds are divided where plans of a choice are compared.
};

/// `format`: "vtrain", "llm-foundry" or "sailor", of which `path` is a folder. Error(kBadInput) with file and line for anything else than
/// such a table, or for one without rows.
COHORT_PROGRAM_API std::vector<PublicRun> read_public_runs(const std::string& format, const std::string& path);

}  // namespace cohort
