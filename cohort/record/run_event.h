#pragma once
// One line of metrics.jsonl as a value: the record of one of the events. Format: docs/formats/metrics.md. Torch-free.

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

/// {"event": its name, its keys}.
Json to_json(const RunEvent& event);
/// The same as a line, with its newline. Bytes that are no UTF-8 become U+FFFD.
std::string to_line(const RunEvent& event);

/// None where no record has that name; keys that the record does not have are ignored. `where` ("metrics.jsonl:12") stands in front of
/// errors. Error(kBadInput) for a value of the wrong kind, naming where, key, what was expected and what was found.
std::optional<RunEvent> read_event(const Json& object, const std::string& where);

/// Of what to_json() made of one.
template <typename Record>
Record record_from(const Json& object, const std::string& where) {
  return std::get<Record>(read_event(object, where).value());
}

}  // namespace cohort
