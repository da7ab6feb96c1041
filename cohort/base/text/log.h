#pragma once
// Log messages on stderr: "cohort: ..." and, in a job of several ranks, "cohort[1]: ...". Thread-safe; a line is one write. Line ends and
// tabs in the text are escaped.

#include <string>
#include <string_view>

#include "cohort/base/export.h"

namespace cohort {

enum class LogLevel { kError, kWarning, kInfo, kDebug };

/// Writes the whole text; ignores failures.
void write_stderr(std::string_view text);

/// The rank shown in every line of this process; -1: none.
void set_log_rank(int rank);

/// Drops lines above the level of COHORT_LOG (error, warning, info, debug; default info).
COHORT_PROGRAM_API void log_line(LogLevel level, const std::string& text);
/// Logs why this process ends; after set_failures_as_json() as {"event":"failed","exit_code":N,"cause":"TEXT"} with the rank, if set.
void log_failure(int exit_code, const std::string& text);
void set_failures_as_json();
inline void log_error(const std::string& text) { log_line(LogLevel::kError, text); }
inline void log_warning(const std::string& text) { log_line(LogLevel::kWarning, text); }
inline void log_info(const std::string& text) { log_line(LogLevel::kInfo, text); }
inline void log_debug(const std::string& text) { log_line(LogLevel::kDebug, text); }

}  // namespace cohort
