#pragma once
// A DataDescription as JSON, and as the file data.json of a run folder. Format: docs/formats/data.md.

#include <string>

#include "cohort/base/text/json_fwd.h"
#include "cohort/data/source/description.h"

namespace cohort {

inline constexpr const char* kDataFile = "data.json";

Json to_json(const DataDescription& description);
/// Error(kBadInput) that names `what` for JSON that is none, or one whose parts contradict each other.
DataDescription description_from_json(const Json& json, const std::string& what);
/// What data.json holds: the same as text, with a checksum.
std::string description_file_text(const DataDescription& description);
/// Of such a file; one from before the checksum has none. Error(kBadInput) says what to do with a damaged one.
DataDescription read_description(const std::string& path);

}  // namespace cohort
