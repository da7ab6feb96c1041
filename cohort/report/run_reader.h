#pragma once
// A run folder as plain values: RUN/config.toml and RUN/metrics.jsonl. Formats: docs/formats/metrics.md. Torch-free.

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
  kOpen,  ///< No end is recorded: it is still going, or it was killed.
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
  std::string layout;              ///< "dp=2, zero=1": what differs from one process; empty when nothing does.
  std::vector<StepRecord> steps;   ///< Steps rise; what a resume undid is not here.
  std::vector<EvalRecord> evals;   ///< Steps rise.
  std::vector<NoiseRecord> noise;  ///< Steps rise; empty without --noise-scale.
  std::vector<CheckpointRecord> checkpoints;
  std::vector<ResumeRecord> resumes;
  std::vector<RankRecord> ranks;           ///< Of the last process.
  std::optional<PipelineRecord> pipeline;  ///< Of the last process.
  std::optional<ForecastRecord> forecast;  ///< Of the last process.
  std::optional<ConfusionRecord> confusion;
  std::optional<MistakesRecord> mistakes;
  std::optional<SampleRecord> sample;
  std::optional<WasteRecord> waste;             ///< Where workers were not equally fast; of the last process.
  std::optional<AsyncRecord> async;             ///< Of workers under the virtual clock; of the last process.
  std::optional<SyncAdviceRecord> sync_advice;  ///< Of the last process.
  std::string exchange_advice;                  ///< One sentence: whether compressing gradients would pay.
  std::optional<DoneRecord> done;               ///< Where state is kDone.
  FailureRecord failure;                        ///< Where state is kFailed.
  std::vector<ChangeRecord> changes;
  int64_t missing_lines = 0;  ///< Of the file: what a full disk did not take.
};

/// Reads RUN/metrics.jsonl, and RUN/config.toml where it is there. A last line that is not whole, as a kill leaves it, is skipped; events
/// and keys that are not known are ignored. Error(kBadInput) with file and line otherwise, or where there is no metrics.jsonl. Gives up,
/// with a part of the run, once `gives_up` is set by another thread.
RunRecord read_run(const std::string& run, const std::atomic<bool>* gives_up = nullptr);

/// The value of a key of config.toml, "" where it has none.
std::string config_value(const RunRecord& run, const std::string& key);

}  // namespace cohort::report
