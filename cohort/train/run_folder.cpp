#include "cohort/train/run_folder.h"

#include <ctime>
#include <filesystem>

#include "cohort/base/error.h"
#include "cohort/base/file.h"

namespace cohort {

namespace fs = std::filesystem;

std::string default_run_folder(const Config& config) {
  const std::time_t now = std::time(nullptr);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", std::localtime(&now));
  return concat("runs/", config.model.substr(0, config.model.find(':')), "-", stamp);
}

void prepare_run_folder(const Config& config) {
  const fs::path folder = config.run;
  const bool holds_run = fs::exists(folder / "metrics.jsonl") || fs::exists(folder / "checkpoints");
  if (holds_run && !config.resume)
    fail(ErrorCode::kBadInput, "--run ", config.run, " already holds a run; add --resume to go on with it, or give another folder");
  if (!holds_run && config.resume) fail(ErrorCode::kBadInput, "--resume: ", config.run, " holds no run");
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(ErrorCode::kBadInput, "--run ", config.run, ": cannot make the folder: ", error.message());
  if (!config.resume) write_run_config(config);
}

void write_run_config(const Config& config) {
  Config lasting = config;  // Without what belongs to this call alone.
  lasting.resume = lasting.json = lasting.quiet = false;
  lasting.inject.clear();
  write_file_atomically((fs::path(config.run) / "config.toml").string(), to_toml(lasting));
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  char out[32];
  std::strftime(out, sizeof out, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return out;
}

}  // namespace cohort
