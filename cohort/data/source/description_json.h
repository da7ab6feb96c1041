#pragma once
// A DataDescription as JSON, and as the file data.json of a run folder. Format: docs/formats/data.md.

#include <string>

#include "cohort/base/text/json_fwd.h"
#include "cohort/data/source/description.h"

namespace cohort {

inline constexpr const char* kDataFile = "data.json";

Json to_json(const DataDescription& description);
/// Error(kBadInput) that names `what` for an invalid or contradictory description.
DataDescription description_from_json(const Json& json, const std::string& what);
/// The content of data.json: to_json() with a checksum.
std::string description_file_text(const DataDescription& description);
/// Reads data.json; older files have no checksum. Error(kBadInput) for a damaged one, with what to do.
DataDescription read_description(const std::string& path);

}  // namespace cohort
