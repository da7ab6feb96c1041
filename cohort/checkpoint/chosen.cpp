#include "cohort/checkpoint/chosen.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/checkpoint/names.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

/// Those of a folder, newest first. A superseded one that is on its way out (.old) is none; one whose step has no other, and that is newer
/// than all others, was left by a kill in the middle of a replacement.
std::vector<std::string> list_standing(const std::string& folder) {
  std::vector<std::string> standing;
  bool has_final = false;
  for (const std::string& name : list_checkpoints(folder)) {
    const bool is_final = parse_checkpoint_folder_name(name)->kind == CheckpointName::Kind::kFinal;
    if (is_final || !has_final) standing.push_back(folder + "/" + name);
    has_final = has_final || is_final;
  }
  return standing;
}

int64_t step_of(const std::string& folder) { return parse_checkpoint_folder_name(fs::path(folder).filename().string())->step; }

/// Of those that are whole in structure.
std::string steps_there(const std::vector<std::string>& folders) {
  std::vector<std::string> steps;
  for (const std::string& folder : folders) steps.push_back(std::to_string(step_of(folder)));
  return join(steps, ", ");
}

/// Whether `folder` is a step folder, and not one that holds some.
bool is_one_checkpoint(const std::string& path, const std::vector<std::string>& found) {
  std::error_code ignored;
  return found.size() == 1 && fs::equivalent(path, found.front(), ignored);
}

/// The folder that is meant, which was there a moment ago.
std::string choose(const std::string& path, const std::string& which, const std::vector<std::string>& found) {
  const bool is_one = is_one_checkpoint(path, found);
  if (is_one && which != "latest")
    fail(ErrorCode::kBadInput, name_settings("--checkpoint "), which, ": ", path,
         name_settings(" is one checkpoint already; give its run folder, or leave --checkpoint out"));
  if (which == "latest") return found.front();
  const std::string folder = fs::path(found.front()).parent_path().string();
  if (which == kBestName) {
    std::error_code is_no_link;
    const fs::path target = fs::read_symlink(folder + "/" + kBestName, is_no_link);
    if (is_no_link)
      fail(ErrorCode::kBadInput, name_settings("--checkpoint best: "), folder,
           " has no link 'best': none of its checkpoints was evaluated; there are steps ", steps_there(found));
    return folder + "/" + target.string();
  }
  const std::optional<int64_t> step = parse_integer(which);
  if (!step || *step < 0)
    fail(ErrorCode::kBadInput, name_settings("--checkpoint "), which, did_you_mean(which, {"best", "latest"}),
         ": expected best, latest or the number of a step; there are steps ", steps_there(found));
  for (const std::string& candidate : found)
    if (step_of(candidate) == *step) return candidate;
  fail(ErrorCode::kBadInput, name_settings("--checkpoint "), which, ": ", folder, " has no checkpoint of step ", *step,
       "; there are steps ", steps_there(found));
}

/// ", the newest that is whole", for who meets one that is not.
std::string advice(const std::vector<std::string>& found, const std::string& damaged) {
  for (const std::string& folder : found) {
    if (folder == damaged) continue;
    try {
      Checkpoint::open(folder, /*verify_data=*/true);
      return concat("; step ", step_of(folder), name_settings(" is the newest that is whole: --checkpoint "), step_of(folder));
    } catch (const Error&) {
    }
  }
  return "; no other one of the run is whole";
}

}  // namespace

std::vector<std::string> find_checkpoints(const std::string& path) {
  std::error_code is_no_link;
  const fs::path target = fs::read_symlink(path, is_no_link);
  const std::string place = is_no_link ? path : (fs::path(path).parent_path() / target).string();  // `latest` moves on.
  if (exists(place + "/" + kManifestName)) return {place};
  if (!is_no_link && fs::read_symlink(path, is_no_link) != target) return find_checkpoints(path);
  for (const std::string& folder : {path + "/checkpoints", path})
    if (std::vector<std::string> found = list_standing(folder); !found.empty()) return found;
  if (!exists(path)) fail(ErrorCode::kBadInput, path, " does not exist");
  if (exists(path + "/metrics.jsonl"))
    fail(ErrorCode::kBadInput, path, " is a run that has saved no checkpoint yet: the first comes with the first evaluation");
  fail(ErrorCode::kBadInput, path, " holds no checkpoint: expected a run folder, its folder checkpoints or one of the step folders in it");
}

Checkpoint open_chosen(const std::string& path, const std::string& which) {
  constexpr int kTries = 100;  // A living run removes old ones.
  for (int tries = 1;; ++tries) {
    const std::vector<std::string> found = find_checkpoints(path);
    const std::string folder = choose(path, which, found);
    try {
      return Checkpoint::open(folder, /*verify_data=*/true);
    } catch (const Error& error) {
      if (!exists(folder) && tries < kTries) continue;
      fail(ErrorCode::kBadInput, "checkpoint ", folder, " is damaged: ", error.what(),
           is_one_checkpoint(path, found) ? "" : advice(found, folder));
    }
  }
}

}  // namespace cohort
