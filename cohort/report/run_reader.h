#pragma once
// Reads a run folder into plain values: RUN/config.toml and RUN/metrics.jsonl. Formats: docs/formats/metrics.md. Torch-free.

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/record/advice_records.h"
#include "cohort/record/async_record.h"
#include "cohort/record/end_records.h"
#include "cohort/record/forecast_record.h"
#include "cohort/record/start_records.h"
#include "cohort/record/step_records.h"

namespace cohort::report {

enum class RunState {
  kOpen,  ///< No end is recorded: the run is still going, or it was killed.
  kDone,
  kInterrupted,
  kFailed,
};

struct ConfigValue {
  std::string key;    ///< "optimizer.lr" for a value inside of a table.
  std::string value;  ///< As TOML writes it; strings without their quotes.
};

struct RunRecord {
  std::string folder;
  std::vector<ConfigValue> config;  ///< In the order of the file; empty where the run has none.
  RunState state = RunState::kOpen;
  std::optional<StartRecord> start;
  std::string layout;              ///< The settings that differ from a single process: "dp=2, zero=1"; may be empty.
  std::vector<StepRecord> steps;   ///< Steps increase; without those that a resume undid.
  std::vector<EvalRecord> evals;   ///< Steps increase.
  std::vector<NoiseRecord> noise;  ///< Steps increase; empty without --noise-scale.
  std::vector<CheckpointRecord> checkpoints;
  std::vector<ResumeRecord> resumes;
  // Ranks, pipeline and forecast are those of the last process.
  std::vector<RankRecord> ranks;
  std::optional<PipelineRecord> pipeline;
  std::optional<ForecastRecord> forecast;
  std::optional<ConfusionRecord> confusion;
  std::optional<MistakesRecord> mistakes;
  std::optional<SampleRecord> sample;
  std::optional<WasteRecord> waste;             ///< Set where workers had different speeds; of the last process.
  std::optional<AsyncRecord> async;             ///< Asynchronous training; of the last process.
  std::optional<SyncAdviceRecord> sync_advice;  ///< Of the last process.
  std::string exchange_advice;                  ///< A sentence on the benefit of gradient compression.
  std::optional<DoneRecord> done;               ///< Set where state is kDone.
  FailureRecord failure;                        ///< Set where state is kFailed.
  std::vector<ChangeRecord> changes;
  int64_t missing_lines = 0;  ///< Lines that a full disk did not accept.
};

/// Reads RUN/metrics.jsonl, and RUN/config.toml where it exists. An incomplete last line, as a kill leaves it, is skipped; unknown events
/// and keys are ignored. Error(kBadInput) with file and line for malformed lines, or where there is no metrics.jsonl. Returns early, with a
/// part of the run, once another thread sets `cancelled`.
RunRecord read_run(const std::string& run, const std::atomic<bool>* cancelled = nullptr);

/// The value of a key of config.toml, "" where it has none.
std::string config_value(const RunRecord& run, const std::string& key);

}  // namespace cohort::report
