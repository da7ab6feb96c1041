#include "cohort/base/text/log.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <string_view>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

std::atomic<int> log_rank{-1};
std::atomic<bool> failures_are_json{false};

/// Options and files quoted in a message may have several lines.
std::string on_one_line(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  std::string line;
  for (const char c : text) {
    if (c == '\n') line += "\\n";
    else if (c == '\t') line += "\\t";
    else line += c;
  }
  return line;
}

void write_line(LogLevel level, const std::string& text) {
  std::string line = "cohort";
  if (log_rank >= 0) line += "[" + std::to_string(log_rank) + "]";
  line += ": ";
  if (level == LogLevel::kError) line += "error: ";
  if (level == LogLevel::kWarning) line += "warning: ";
  line += on_one_line(printable(text));  // It may quote a file or an option: no control characters.
  write_stderr(line += '\n');
}

LogLevel level_from_environment() {
  const char* value = std::getenv("COHORT_LOG");
  const std::string_view text = value && *value ? value : "info";
  if (text == "error") return LogLevel::kError;
  if (text == "warning") return LogLevel::kWarning;
  if (text == "debug") return LogLevel::kDebug;
  if (text != "info") write_line(LogLevel::kWarning, concat("COHORT_LOG=", text, " is none of error, warning, info, debug; info is used"));
  return LogLevel::kInfo;
}

}  // namespace

void write_stderr(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // stderr is closed; there is nowhere else to report it.
    text.remove_prefix(static_cast<size_t>(written));
  }
}

void set_log_rank(int rank) { log_rank = rank; }

void log_line(LogLevel level, const std::string& text) {
  static const LogLevel most = level_from_environment();
  if (level > most) return;
  write_line(level, text);
}

void set_failures_as_json() { failures_are_json = true; }

void log_failure(int exit_code, const std::string& text) {
  if (!failures_are_json) return log_error(text);
  Json line{{"event", "failed"}, {"exit_code", exit_code}, {"cause", printable(text)}};
  if (log_rank >= 0) line["rank"] = log_rank.load();
  write_stderr(line.dump() + '\n');
}

}  // namespace cohort
