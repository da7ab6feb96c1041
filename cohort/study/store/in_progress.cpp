// Trials that are not in the store yet: as JSON, and as files of DIR/in_progress.
#include "cohort/study/store/in_progress.h"

#include <filesystem>
#include <limits>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"

namespace cohort::study {
namespace {

double number(const Json& json) { return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>(); }

/// Adds the source to nlohmann's exceptions.
template <typename Read>
auto checked(const std::string& what, const Read& read) {
  try {
    return read();
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::kBadInput, what, " is damaged: ", error.what());
  }
}

}  // namespace

Json to_json(const Trial& trial) {
  Json measurements = Json::array();
  for (const Measurement& measurement : trial.measurements) {
    Json row = Json::array({measurement.step});
    for (const double value : measurement.values) row.push_back(finite_json(value));
    measurements.push_back(std::move(row));
  }
  return {{"id", trial.id},
          {"status", name_of(trial.status)},
          {"steps", trial.steps},
          {"seconds", finite_json(trial.seconds)},
          {"parameters", trial.parameters},
          {"measurements", std::move(measurements)}};
}

Trial trial_from_json(const Json& json, const std::string& what) {
  return checked(what, [&] {
    Trial trial;
    trial.id = json.at("id").get<int64_t>();
    trial.status = parse_trial_status(json.at("status").get<std::string>());
    trial.steps = json.at("steps").get<int64_t>();
    trial.seconds = number(json.at("seconds"));
    trial.parameters = json.at("parameters").get<Parameters>();
    for (const Json& row : json.at("measurements")) {
      if (row.size() != kNumMetrics + 1) fail(ErrorCode::kBadInput, what, " is damaged: a measurement has ", row.size(), " numbers");
      Measurement measurement;
      measurement.step = row.at(0).get<int64_t>();
      for (size_t i = 0; i < kNumMetrics; ++i) measurement.values[i] = number(row.at(i + 1));
      trial.measurements.push_back(measurement);
    }
    return trial;
  });
}

Json to_json(const TrialOrder& order) {
  return {{"batch_size", order.batch_size}, {"id", order.id},     {"train_steps", order.train_steps},
          {"parameters", order.parameters}, {"seed", order.seed}, {"snapshot", order.snapshot}};
}

TrialOrder order_from_json(const Json& json, const std::string& what) {
  return checked(what, [&] {
    return TrialOrder{json.at("batch_size").get<int64_t>(),    json.at("id").get<int64_t>(),    json.at("train_steps").get<int64_t>(),
                      json.at("parameters").get<Parameters>(), json.at("seed").get<uint64_t>(), json.at("snapshot").get<std::string>()};
  });
}

Json to_json(const TrialBound& bound) { return {{"stop_at", bound.stop_at}, {"best", bound.best}}; }

TrialBound bound_from_json(const Json& json, const std::string& what) {
  return checked(what, [&] { return TrialBound{json.at("stop_at").get<int64_t>(), json.at("best").get<ReachedSteps>()}; });
}

namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 30;

struct Name {
  int64_t batch_size = 0, id = 0, train_steps = 0;
  bool is_trial = false;
};

std::optional<Name> parse_name(const std::filesystem::path& path) {
  const std::vector<std::string> parts = split(path.stem().string(), '_');
  const std::string kind = path.extension().string();
  if (parts.size() != 3 || (kind != ".trial" && kind != ".snapshot")) return std::nullopt;
  const auto batch_size = parse_integer(parts[0]), id = parse_integer(parts[1]), train_steps = parse_integer(parts[2]);
  if (!batch_size || !id || !train_steps) return std::nullopt;
  return Name{*batch_size, *id, *train_steps, kind == ".trial"};
}

Trial read_trial(const std::string& path) {
  return trial_from_json(parse_strict_ordered_json(read_small_file(path, kMaxFileBytes), {.path = path}), path);
}

/// None, with a warning, where the file is damaged: then only this trial is run again.
std::optional<Trial> read_valid_trial(const std::string& path, int64_t id) {
  try {
    Trial trial = read_trial(path);
    if (trial.id != id) fail(ErrorCode::kBadInput, path, ": holds trial ", trial.id, ", and its name says ", id);
    return trial;
  } catch (const Error& error) {
    log_warning(concat("the trial ", path, " cannot be used: ", error.what(), "; it is run again"));
    return std::nullopt;
  }
}

}  // namespace

InProgress::InProgress(const std::string& study_folder) : folder_(study_folder + "/in_progress") {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) fail(ErrorCode::kFailed, "cannot create folder ", folder_, ": ", error.message());
}

std::string InProgress::path(int64_t batch_size, int64_t id, int64_t train_steps, const char* kind) const {
  return concat(folder_, "/", batch_size, "_", id, "_", train_steps, ".", kind);
}

std::string InProgress::snapshot(int64_t batch_size, int64_t id, int64_t train_steps) const {
  return path(batch_size, id, train_steps, "snapshot");
}

void InProgress::keep(int64_t batch_size, int64_t train_steps, const Trial& trial) {
  write_file_atomically(path(batch_size, trial.id, train_steps, "trial"), to_json(trial).dump());
}

Trial InProgress::read(int64_t batch_size, int64_t id, int64_t train_steps) const {
  return read_trial(path(batch_size, id, train_steps, "trial"));
}

void InProgress::remove(int64_t batch_size, int64_t id, int64_t train_steps) {
  std::error_code ignored;  // Most files do not exist.
  for (const char* kind : {"trial", "snapshot"}) std::filesystem::remove(path(batch_size, id, train_steps, kind), ignored);
}

void InProgress::restore(const std::function<bool(int64_t, int64_t, int64_t)>& wanted,
                         const std::function<void(int64_t, const Trial&)>& kept) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) paths.push_back(entry.path());
  for (const std::filesystem::path& path : paths) {
    const std::optional<Name> name = parse_name(path);
    std::error_code ignored;
    if (!name || !wanted(name->batch_size, name->id, name->train_steps)) {
      std::filesystem::remove(path, ignored);
      continue;
    }
    if (!name->is_trial) continue;
    if (const std::optional<Trial> trial = read_valid_trial(path.string(), name->id)) kept(name->batch_size, *trial);
    else std::filesystem::remove(path, ignored);
  }
}

void InProgress::remove_all() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

}  // namespace cohort::study
