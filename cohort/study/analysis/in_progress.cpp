#include "cohort/study/analysis/in_progress.h"

#include <filesystem>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/study/store/trial_messages.h"

namespace cohort::study {
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

/// None, and a warning, where the file is damaged: that costs one trial, not the study.
std::optional<Trial> whole_trial(const std::string& path, int64_t id) {
  try {
    Trial trial = read_trial(path);
    if (trial.id != id) fail(ErrorCode::kBadInput, path, ": holds trial ", trial.id, ", and its name says ", id);
    return trial;
  } catch (const Error& error) {
    log_warning(concat("the trial ", path, " can not be used: ", error.what(), "; it is run again"));
    return std::nullopt;
  }
}

}  // namespace

InProgress::InProgress(const std::string& study_folder) : folder_(study_folder + "/in_progress") {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) fail(ErrorCode::kFailed, "cannot make folder ", folder_, ": ", error.message());
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
  std::error_code ignored;  // Most were never written.
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
    if (const std::optional<Trial> trial = whole_trial(path.string(), name->id)) kept(name->batch_size, *trial);
    else std::filesystem::remove(path, ignored);
  }
}

void InProgress::remove_all() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

}  // namespace cohort::study
