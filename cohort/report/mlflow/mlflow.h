#pragma once
// A run as MLflow's file store has it, so that `mlflow ui --backend-store-uri DIR` shows it beside others. Torch-free.

#include <string>

namespace cohort::report {

/// Writes the run into DIR/EXPERIMENT/RUN: meta.yaml, params/, metrics/, tags/ and, as artifacts, report.html and config.toml. The
/// experiment is the model on its data. A run that was exported before is replaced, whole. Returns the folder. Error(kBadInput) where there
/// is no run, or DIR holds something else; Error(kFailed) where it cannot be written.
std::string export_to_mlflow(const std::string& run, const std::string& directory);

}  // namespace cohort::report
