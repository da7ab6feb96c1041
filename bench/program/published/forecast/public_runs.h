#pragma once
// Published tables of measured steps (formats: docs/formats/measured_steps.md).

#include <cstdint>
#include <string>
#include <vector>

#include "bench/program/published/forecast/transformer_step.h"

namespace cohort {

struct MeasuredRun {
  TransformerRun run;
  double measured_seconds = 0;
};

struct PublicRun {
  int64_t row = 0;  ///< Row of the file from 1, without the header.
  MeasuredRun measured;
  std::string machine;  ///< Runs of one were made on the same kind of device: what is before its first blank is a name for known_machine().
  std::string choice;   ///< Runs of one choice are plans of the same training, of which a planner takes one.
  double samples = 1;   ///< Divides seconds when plans of a choice are compared.
};

/// `format`: "vtrain", "llm-foundry" or "sailor", of which `path` is a folder. Error(kBadInput) with file and line for anything else than
/// such a table, or for one without rows.
std::vector<PublicRun> read_public_runs(const std::string& format, const std::string& path);

/// Memory of a rank's Transformer layers for one model and tensor degree: weights and activations of one sequence, nothing recomputed.
struct MeasuredMemory {
  std::string model;
  int tp = 1;
  double predicted_bytes = 0, measured_bytes = 0;
};

/// `folder` has training_*.json, profiles/MODEL/GPU.json and, for the second, layer_memory.json. A run is a micro-batch forward and
/// backward and an update, on one tensor-parallel group. Error(kBadInput) with file and place.
std::vector<PublicRun> read_sailor_runs(const std::string& folder);
std::vector<MeasuredMemory> forecast_sailor_memory(const std::string& folder);

}  // namespace cohort
