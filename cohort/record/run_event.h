#pragma once
// One line of metrics.jsonl as a value. Format: docs/formats/metrics.md. Torch-free.

#include <optional>
#include <string>
#include <variant>

#include "cohort/base/text/json_fwd.h"
#include "cohort/record/advice_records.h"
#include "cohort/record/async_record.h"
#include "cohort/record/end_records.h"
#include "cohort/record/forecast_record.h"
#include "cohort/record/start_records.h"
#include "cohort/record/step_records.h"

namespace cohort {

using RunEvent =
    std::variant<StartRecord, ResumeRecord, ChangeRecord, ForecastRecord, PipelineRecord, StepRecord, EvalRecord, NoiseRecord, SharesRecord,
                 CheckpointRecord, CheckpointFailedRecord, MissingLinesRecord, RanksRecord, AdviceRecord, SyncAdviceRecord, WasteRecord,
                 AsyncRecord, ConfusionRecord, MistakesRecord, SampleRecord, DoneRecord, InterruptedRecord, FailureRecord>;

/// {"event": NAME, its keys}.
Json to_json(const RunEvent& event);
/// to_json() as a line with newline. Invalid UTF-8 becomes U+FFFD.
std::string to_line(const RunEvent& event);

/// Nullopt for an unknown event; unknown keys are ignored. Error(kBadInput) for a value of the wrong type; its text begins with `where`
/// ("metrics.jsonl:12").
std::optional<RunEvent> read_event(const Json& object, const std::string& where);

/// Reads back what to_json() made of a Record.
template <typename Record>
Record record_from(const Json& object, const std::string& where) {
  return std::get<Record>(read_event(object, where).value());
}

}  // namespace cohort
