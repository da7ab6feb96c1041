#include "cohort/plan/profile/calibration_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/json_fields.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr int64_t kMostBytes = 4 << 20;
constexpr size_t kMostLines = 1000, kMostLineBytes = 4096;

/// The end of the file, from the beginning of a line; `is_cut`: there is more before it.
std::string read_end(const std::string& path, bool& is_cut) {
  // A pipe must not keep a run waiting.
  const UniqueDescriptor file = open_file(path, O_RDONLY | O_NONBLOCK);
  struct stat status{};
  if (::fstat(file.get(), &status) < 0) fail_errno(ErrorCode::kBadInput, "stat", path, errno);
  if (!S_ISREG(status.st_mode)) fail(ErrorCode::kBadInput, path, " is no regular file");
  is_cut = status.st_size > kMostBytes;
  std::string text(static_cast<size_t>(is_cut ? kMostBytes : int64_t{status.st_size}), '\0');
  const off_t first = status.st_size - static_cast<off_t>(text.size());
  for (size_t done = 0; done < text.size();) {
    const ssize_t got = ::pread(file.get(), text.data() + done, text.size() - done, first + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(ErrorCode::kBadInput, "read", path, errno);
    if (got == 0) text.resize(done);  // Somebody cut it meanwhile.
    done += static_cast<size_t>(got);
  }
  if (is_cut) text.erase(0, text.find('\n') == std::string::npos ? text.size() : text.find('\n') + 1);
  return text;
}

double positive(const JsonLine& line, const char* key) {
  const double value = line.number(key);
  if (!(value > 0) || !std::isfinite(value)) fail(ErrorCode::kBadInput, line.where(), ": '", key, "' is no number above 0");
  return value;
}

ForecastError parse_line(const std::string& text, const std::string& where) {
  if (text.size() > kMostLineBytes) fail(ErrorCode::kBadInput, where, ": longer than ", kMostLineBytes, " bytes");
  const Json json = parse_strict_ordered_json(text, {.path = where});
  const JsonLine line(json, where);
  ForecastError error{.model = line.required_text("model"),
                      .parameters = line.required_count("parameters"),
                      .layout_class = line.required_text("layout_class"),
                      .precision = line.required_text("precision"),
                      .global_batch = line.count("global_batch").value_or(0),
                      .steps = line.required_count("steps"),
                      .predicted_step_seconds = positive(line, "predicted_step_seconds"),
                      .measured_step_seconds = positive(line, "measured_step_seconds"),
                      .predicted_peak_bytes = line.count("predicted_peak_bytes").value_or(0),
                      .measured_peak_bytes = line.count("measured_peak_bytes").value_or(0)};
  error.workers = static_cast<int>(std::min<int64_t>(line.count("workers").value_or(1), 1 << 20));
  return error;
}

std::string line_of(const ForecastError& error) {
  return Json{{"written", utc_now()},
              {"model", error.model},
              {"parameters", error.parameters},
              {"layout_class", error.layout_class},
              {"precision", error.precision},
              {"workers", error.workers},
              {"global_batch", error.global_batch},
              {"steps", error.steps},
              {"predicted_step_seconds", error.predicted_step_seconds},
              {"measured_step_seconds", error.measured_step_seconds},
              {"predicted_peak_bytes", error.predicted_peak_bytes},
              {"measured_peak_bytes", error.measured_peak_bytes}}
             .dump(-1, ' ', false, Json::error_handler_t::replace) +
         "\n";
}

/// A line that a kill or a full disk cut short must not spoil the one after it.
bool ends_inside_a_line(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return file.seekg(-1, std::ios::end) && file.get() != '\n';
}

/// The newest lines alone.
void trim_file(const std::string& path) {
  bool is_cut = false;
  const std::vector<std::string> lines = split(read_end(path, is_cut), '\n');
  std::string kept;
  for (size_t i = lines.size() > kMostLines + 1 ? lines.size() - kMostLines - 1 : 0; i < lines.size(); ++i)
    if (!lines[i].empty()) kept += lines[i] + "\n";
  write_file_atomically(path, kept);
}

}  // namespace

std::string default_calibration_file() {
  // Relative paths are invalid, says the XDG base directory specification.
  if (const char* const cache = std::getenv("XDG_CACHE_HOME"); cache && *cache == '/') return concat(cache, "/cohort/calibration.jsonl");
  if (const char* const home = std::getenv("HOME"); home && *home) return concat(home, "/.cache/cohort/calibration.jsonl");
  return "";
}

std::string calibration_file(const std::string& option) {
  if (option == "none") return "";
  return option.empty() ? default_calibration_file() : option;
}

KeptErrors read_calibration(const std::string& path) {
  KeptErrors kept;
  if (std::error_code ignored; path.empty() || !std::filesystem::exists(path, ignored)) return kept;
  bool is_cut = false;
  std::string text;
  try {
    text = read_end(path, is_cut);
  } catch (const Error& error) {
    kept.damaged = concat("nothing is read from it: ", error.what());
    return kept;
  }
  const std::vector<std::string> lines = split(text, '\n');
  int64_t num_damaged = 0;
  std::string first;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (trim(lines[i]).empty()) continue;
    try {
      kept.errors.push_back(parse_line(lines[i], concat("line ", i + 1, is_cut ? " of its last 4 MiB" : "")));
    } catch (const Error& error) {
      if (num_damaged++ == 0) first = error.what();
    }
  }
  if (num_damaged > 0) kept.damaged = concat(num_damaged, num_damaged == 1 ? " line is" : " lines are", " damaged and left out: ", first);
  if (kept.errors.size() > kMostLines) kept.errors.erase(kept.errors.begin(), kept.errors.end() - static_cast<std::ptrdiff_t>(kMostLines));
  return kept;
}

void check_calibration_option(const std::string& option) {
  if (option.empty() || option == "none") return;
  try {
    if (std::error_code ignored; !std::filesystem::exists(option, ignored)) return;  // What cannot be written is said when it is to be.
    const KeptErrors kept = read_calibration(option);
    if (kept.errors.empty() && !kept.damaged.empty()) fail(ErrorCode::kBadInput, "no calibration file: ", kept.damaged);
  } catch (const Error& error) {
    fail(ErrorCode::kBadInput, "--calibration ", option, ": ", error.what(), "; name another file, or none");
  }
}

ForecastIntervals kept_intervals(const std::string& path, const ModelProfile& profile) {
  const KeptErrors kept = read_calibration(path);
  if (!kept.damaged.empty()) log_warning(concat("calibration ", path, ": ", kept.damaged));
  int64_t parameters = 0;
  for (const ProfiledLayer& layer : profile.layers) parameters += layer.num_trained + layer.num_frozen;
  return {kept.errors, profile.model, parameters};
}

std::string append_calibration(const std::string& path, const ForecastError& error) {
  if (path.empty()) return "";
  try {
    if (std::error_code failed; !std::filesystem::create_directories(parent_folder(path), failed) && failed)
      return concat("cannot make ", parent_folder(path), ": ", failed.message());
    check_replaceable_file(path);
    const std::string line = (ends_inside_a_line(path) ? "\n" : "") + line_of(error);
    AppendFile file(path);
    if (const int reason = file.append(line); reason != 0) fail_errno(ErrorCode::kFailed, "write", path, reason);
    if (file.bytes() > kMostBytes) trim_file(path);
  } catch (const Error& failed) {
    return failed.what();
  }
  return "";
}

}  // namespace cohort
