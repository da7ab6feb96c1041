// The interval of a forecast from the errors of those before it.
//
//   e_i = log(measured / predicted)                 of n runs that count as alike
//   [low, high] = exp(mean(e) -+ t(0.95, n - 1) x s x sqrt(1 + 1/n))      s: standard deviation of e, at least kNoise
//
// the interval in which the next of n + 1 draws of a normal distribution lies in 90 of 100 cases (Student's t; e.g. Hahn and Meeker,
// Statistical Intervals, 1991, section 4.7). Times vary by factors, so the errors are taken as logarithms. The same plan measured twice
// differs by kNoise, so a few runs that agree by chance do not narrow the interval.
//
// Outliers are removed first, so that one run on a busy machine does not widen the interval for months: of n >= kLeastToJudge runs at most
// a tenth (or one), and only errors further from the median than kFar robust deviations (1.4826 x the median distance from the median, at
// least kNoise; e.g. Rousseeuw and Croux, 1993). More large errors than that stay and widen it.
//
// Similar runs are the first of these with at least kLeastErrors:
//   1. the same model, class of layouts and precision: the newest kMostErrors runs;
//   2. the same class and precision: the newest run of each model, so that a model trained every day does not dominate;
//   3. everything: the newest run of each model in each class.
//
// The interval always contains the forecast itself (low <= 1 <= high), which is not shifted: docs/algorithms/step_forecast.md.
// Cost: O(errors), once per plan.
#include "cohort/plan/profile/calibration_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/statistics.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/json_fields.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr double kNoise = 0.04;
constexpr size_t kMostErrors = 30;
constexpr size_t kLeastToJudge = 5;
constexpr double kWidest = 10;  // A factor in each direction; wider intervals only tell how busy the machine was.
constexpr double kFar = 6, kDeviationOfMedianDistance = 1.4826;  // For a normal distribution.

/// Student's t, 95 % below, by degrees of freedom from 1.
double student_quantile(size_t degrees) {
  constexpr std::array<double, 30> kTable = {6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812,
                                             1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725,
                                             1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697};
  return kTable.at(std::clamp<size_t>(degrees, 1, kTable.size()) - 1);
}

/// `logs` without outliers.
std::vector<double> without_outliers(std::vector<double> logs) {
  if (logs.size() < kLeastToJudge) return logs;
  const double middle = median(logs);
  const auto distance = [&](double value) { return std::abs(value - middle); };
  std::vector<double> distances;
  for (const double value : logs) distances.push_back(distance(value));
  const double far = kFar * std::max(kNoise, kDeviationOfMedianDistance * median(distances));
  std::sort(logs.begin(), logs.end(), [&](double a, double b) { return distance(a) < distance(b); });
  const size_t least = logs.size() - std::max<size_t>(1, logs.size() / 10);
  while (logs.size() > least && distance(logs.back()) > far) logs.pop_back();
  return logs;
}

/// `all` has at least two values.
ErrorInterval interval_of(const std::vector<double>& all, std::string from) {
  const std::vector<double> logs = without_outliers(all);
  const auto n = static_cast<double>(logs.size());
  const double mean = std::accumulate(logs.begin(), logs.end(), 0.0) / n;
  double squares = 0;
  for (const double value : logs) squares += (value - mean) * (value - mean);
  const double deviation = std::max(kNoise, std::sqrt(squares / (n - 1)));
  const double half = std::min(std::log(kWidest), student_quantile(logs.size() - 1) * deviation * std::sqrt(1 + 1 / n));
  return {std::min(1.0, std::exp(mean - half)), std::max(1.0, std::exp(mean + half)), std::move(from)};
}

std::string key_of(const std::string& layout_class, const std::string& precision) { return concat(layout_class, " in ", precision); }

/// The key without its default precision: "dp" for "dp in fp32".
std::string short_key(const std::string& key) { return key.ends_with(" in fp32") ? key.substr(0, key.size() - 8) : key; }

}  // namespace

std::string layout_class(const Layout& layout) {
  std::vector<std::string> parts;
  const std::vector<int> degrees = layout.data_degrees();
  if (*std::max_element(degrees.begin(), degrees.end()) > 1) parts.emplace_back("dp");
  if (layout.zero > 0) parts.push_back(concat("zero=", layout.zero));
  if (layout.pp > 1) parts.push_back(concat("pp ", layout.schedule.ends_with(".json") ? std::string("table") : layout.schedule));
  if (layout.tp > 1) parts.emplace_back("tp");
  if (layout.compress != "none") parts.push_back("compress=" + layout.compress);
  if (layout.recompute != "none") parts.emplace_back("recompute");
  return parts.empty() ? "single" : join(parts, " ");
}

ForecastIntervals::ForecastIntervals(const std::vector<ForecastError>& errors, const std::string& model, int64_t parameters) {
  std::map<std::string, std::vector<double>> mine;                                  // Keyed by class and precision, newest first.
  std::map<std::string, std::map<std::pair<std::string, int64_t>, double>> newest;  // Keyed by class and precision, then by model.
  for (auto error = errors.rbegin(); error != errors.rend(); ++error) {
    // Clamped, because the file may hold any value.
    const double log = std::clamp(std::log(error->measured_step_seconds / error->predicted_step_seconds), -10.0, 10.0);
    const std::string key = key_of(error->layout_class, error->precision);
    newest[key].emplace(std::pair(error->model, error->parameters), log);
    if (error->model == model && error->parameters == parameters && mine[key].size() < kMostErrors) mine[key].push_back(log);
  }
  std::vector<double> all;
  for (const auto& [key, logs] : mine)
    if (logs.size() >= kLeastErrors) of_model_[key] = interval_of(logs, concat(logs.size(), " runs of ", model, " as ", short_key(key)));
  for (const auto& [key, models] : newest) {
    std::vector<double> logs;
    for (const auto& [name, log] : models) logs.push_back(log);
    if (logs.size() >= kLeastErrors) of_class_[key] = interval_of(logs, concat(logs.size(), " runs of as many models as ", short_key(key)));
    all.insert(all.end(), logs.begin(), logs.end());
  }
  if (all.size() >= kLeastErrors) of_all_ = interval_of(all, concat(all.size(), " runs of all models and layouts"));
}

const ErrorInterval* ForecastIntervals::of(const Layout& layout, const std::string& precision) const {
  const ErrorInterval* const rest = of_all_.from.empty() ? nullptr : &of_all_;
  if (of_model_.empty() && of_class_.empty()) return rest;  // A search asks for each layout.
  const std::string key = key_of(layout_class(layout), layout.precision.empty() ? precision : layout.precision);
  if (const auto found = of_model_.find(key); found != of_model_.end()) return &found->second;
  if (const auto found = of_class_.find(key); found != of_class_.end()) return &found->second;
  return rest;
}

namespace {

constexpr int64_t kMostBytes = 4 << 20;
constexpr size_t kMostLines = 1000, kMostLineBytes = 4096;

/// The end of the file, from the start of a line; `is_cut` tells whether there is more before it.
std::string read_end(const std::string& path, bool& is_cut) {
  // O_NONBLOCK, so that a pipe does not block the run.
  const UniqueDescriptor file = open_file(path, O_RDONLY | O_NONBLOCK);
  struct stat status{};
  if (::fstat(file.get(), &status) < 0) fail_errno(ErrorCode::kBadInput, "stat", path, errno);
  if (!S_ISREG(status.st_mode)) fail(ErrorCode::kBadInput, path, " is not a regular file");
  is_cut = status.st_size > kMostBytes;
  std::string text(static_cast<size_t>(is_cut ? kMostBytes : int64_t{status.st_size}), '\0');
  const off_t first = status.st_size - static_cast<off_t>(text.size());
  for (size_t done = 0; done < text.size();) {
    const ssize_t got = ::pread(file.get(), text.data() + done, text.size() - done, first + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(ErrorCode::kBadInput, "read", path, errno);
    if (got == 0) text.resize(done);  // The file was truncated meanwhile.
    done += static_cast<size_t>(got);
  }
  if (is_cut) text.erase(0, text.find('\n') == std::string::npos ? text.size() : text.find('\n') + 1);
  return text;
}

double positive(const JsonLine& line, const char* key) {
  const double value = line.number(key);
  if (!(value > 0) || !std::isfinite(value)) fail(ErrorCode::kBadInput, line.where(), ": '", key, "' is not a number above 0");
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

/// Whether the last line was cut short, by a kill or a full disk.
bool ends_inside_a_line(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return file.seekg(-1, std::ios::end) && file.get() != '\n';
}

/// Keeps the newest lines only.
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
  // Relative paths are invalid by the XDG base directory specification.
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
    if (std::error_code ignored; !std::filesystem::exists(option, ignored)) return;  // Write errors are reported at the end of the run.
    const KeptErrors kept = read_calibration(option);
    if (kept.errors.empty() && !kept.damaged.empty()) fail(ErrorCode::kBadInput, "invalid calibration file: ", kept.damaged);
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
