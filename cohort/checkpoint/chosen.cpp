#include "cohort/checkpoint/chosen.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/log.h"
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

/// For a RUN/checkpoints/latest that does not say which is the newest: the newest of all beside it. "" where there is none, or `path` is
/// another.
std::string newest_beside(const std::string& path, const std::string& why) {
  if (fs::path(path + "/").parent_path().filename() != kLatestName) return "";
  const std::vector<std::string> beside = list_standing(parent_folder(path));
  if (beside.empty()) return "";
  log_warning(concat(path, why, "; taken is ", beside.front()));
  return beside.front();
}

/// Whether `path` is a step folder or names one, and is not a folder that holds some.
bool is_one_checkpoint(const std::string& path, const std::vector<std::string>& found) {
  std::error_code ignored;
  return found.size() == 1 && (fs::equivalent(path, found.front(), ignored) || fs::is_regular_file(path, ignored));
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
    const std::string best = folder + "/" + kBestName, target = read_pointer(best);
    if (!target.empty()) return folder + "/" + target;
    if (exists(best + "/" + kManifestName)) return best;  // A copy that followed a symbolic link.
    fail(ErrorCode::kBadInput, name_settings("--checkpoint best: "), folder,
         " has no 'best': none of its checkpoints was evaluated; there are steps ", steps_there(found));
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
  const std::string target = read_pointer(path);
  const std::string place = target.empty() ? path : (fs::path(path).parent_path() / target).string();
  const bool is_one = exists(place + "/" + kManifestName);
  if (is_one && target.empty())  // Others may have come since it was copied.
    if (const std::string newest = newest_beside(path, " is a folder, the copy of what was the newest once"); !newest.empty())
      return {newest};
  if (is_one) return {place};
  if (read_pointer(path) != target) return find_checkpoints(path);  // `latest` moves on.
  if (parse_checkpoint_folder_name(target)) {
    if (const std::string newest = newest_beside(path, concat(" names ", target, ", which is not there")); !newest.empty()) return {newest};
    fail(ErrorCode::kBadInput, path, " names ", target, ", which is not there; give a step folder beside it");
  }
  if (std::error_code ignored; fs::is_regular_file(path, ignored)) {
    if (const std::string newest = newest_beside(path, " does not hold the name of a checkpoint: it is damaged"); !newest.empty())
      return {newest};
    fail(ErrorCode::kBadInput, path, " does not hold the name of a checkpoint: it is damaged; give a step folder beside it");
  }
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
