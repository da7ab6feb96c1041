#pragma once
// Messages for people, on stderr: "cohort: ..." and, in a job of several ranks, "cohort[1]: ...". Thread-safe; a line is one write. Ends of
// lines and tabs in the text, which come from an option or a file, are written as \n and \t.

#include <string>

#include "cohort/base/export.h"

namespace cohort {

enum class LogLevel { kError, kWarning, kInfo, kDebug };

/// The rank in front of every line of this process, -1 for none.
void set_log_rank(int rank);

/// Lines above kInfo, or the level that COHORT_LOG (error, warning, info, debug) says, are dropped.
COHORT_PROGRAM_API void log_line(LogLevel level, const std::string& text);
/// Why this process ends, as an error; after set_failures_as_json() as {"event":"failed","exit_code":N,"cause":"TEXT"} and the rank, where
/// lines have one.
void log_failure(int exit_code, const std::string& text);
void set_failures_as_json();
inline void log_error(const std::string& text) { log_line(LogLevel::kError, text); }
inline void log_warning(const std::string& text) { log_line(LogLevel::kWarning, text); }
inline void log_info(const std::string& text) { log_line(LogLevel::kInfo, text); }
inline void log_debug(const std::string& text) { log_line(LogLevel::kDebug, text); }

}  // namespace cohort
