// Removal after a commit. A checkpoint is first renamed to step-N.old.<nonce>, so that a name without suffix is always complete, and its
// manifest is removed first, so that a partially removed one is never taken for a checkpoint.
//
// Kept: the committed step S; later steps (a job that went back to S does not own them); the newest keep - 1 structurally valid ones below
// S and all in between; the best one. Removed: all other older ones; every .old whose step has a valid final folder or is older than those
// kept. An .old without final folder is the only copy of its step, left by a crash between two renames, and is kept.
//
// Temporary folders are removed if their writer is certainly dead (by nonce or writer.json; process_identity.h) or, where that is unknown
// (another host), unchanged for an hour before this commit.

#include "cohort/checkpoint/retention.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <system_error>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/files/process_identity.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/checkpoint/names.h"

namespace cohort {
namespace {

using Kind = CheckpointName::Kind;

bool structurally_valid(const std::string& path) {
  try {
    Checkpoint::open(path, /*verify_data=*/false);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

/// Time of the newest change of a folder or of a file in it.
int64_t last_change(CheckpointIo& io, const std::string& folder) {
  FileStatus status;
  if (!checked::status(io, folder, &status)) return 0;
  int64_t newest = status.modified_seconds;
  for (const std::string& name : checked::list(io, folder)) {
    if (checked::status(io, folder + "/" + name, &status)) newest = std::max(newest, status.modified_seconds);
  }
  return newest;
}

bool writer_is_dead(CheckpointIo& io, const std::string& temporary, const std::string& nonce, int64_t committed_seconds) {
  constexpr size_t kMaxWriterBytes = 4096;
  FileStatus ignored;
  // writer.json identifies the process exactly; the nonce, with 16 hashed bits for the host, is used only without it.
  const bool is_named = checked::status(io, temporary + "/" + kWriterName, &ignored);
  const ProcessState state =
      is_named ? process_state(read_small_file(temporary + "/" + kWriterName, kMaxWriterBytes)) : state_of_nonce(nonce);
  if (state != ProcessState::kUnknown) return state == ProcessState::kGone;
  return last_change(io, temporary) < committed_seconds - kStaleSeconds;
}

/// The steps that have a final folder, newest first.
std::vector<int64_t> final_steps(const std::vector<CheckpointName>& names) {
  std::vector<int64_t> steps;
  for (const CheckpointName& name : names) {
    if (name.kind == Kind::kFinal) steps.push_back(name.step);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

/// Below this step nothing is kept.
int64_t oldest_kept(const std::string& folder, const std::vector<int64_t>& steps, int64_t committed, int keep) {
  int valid = 1;  // The one just committed.
  for (const int64_t step : steps) {
    if (step >= committed) continue;
    if (valid >= keep) break;
    if (structurally_valid(folder + "/" + checkpoint_folder_name({Kind::kFinal, step, ""})) && ++valid == keep) return step;
  }
  return valid >= keep ? committed : 0;
}

}  // namespace

std::string set_aside(CheckpointIo& io, const std::string& folder, int64_t step, const std::string& nonce) {
  const std::string current = folder + "/" + checkpoint_folder_name({Kind::kFinal, step, ""});
  const std::string aside = folder + "/" + checkpoint_folder_name({Kind::kAside, step, nonce});
  FileStatus status;
  if (!checked::status(io, current, &status)) return {};
  // Left by an earlier attempt; its step has a final folder, so it is superseded.
  if (checked::status(io, aside, &status)) {
    checked::sync_folder(io, folder);  // Its successor may not be durable yet.
    checked::remove_tree(io, aside, kManifestName);
  }
  return checked::rename_if_exists(io, current, aside) ? aside : "";
}

void remove_unfinished(CheckpointIo& io, const std::string& folder) {
  std::vector<std::string> names;
  if (io.list(folder, &names) < 0) return;  // Not created yet.
  for (const std::string& text : names) {
    const auto name = parse_checkpoint_folder_name(text);
    const std::string path = folder + "/" + text;
    try {
      if (name && name->kind == Kind::kTemporary && writer_is_dead(io, path, name->nonce, 0)) checked::remove_tree(io, path, kManifestName);
    } catch (const Error& error) {
      log_warning(error.what());
    }
  }
  remove_leftover_files(folder);
}

std::vector<std::string> remove_superseded(CheckpointIo& io, const std::string& folder, const Committed& committed,
                                           const std::string& nonce) {
  std::vector<std::string> failures;
  const auto attempt = [&](const std::function<void()>& action) {
    try {
      action();
    } catch (const std::exception& error) {
      failures.push_back(error.what());
    }
  };
  std::vector<CheckpointName> names;
  std::vector<std::string> links;
  FileStatus manifest;
  attempt([&] {
    for (const std::string& text : checked::list(io, folder)) {
      if (const auto name = parse_checkpoint_folder_name(text)) names.push_back(*name);
      for (const char* link : {kLatestName, kBestName})
        if (text.rfind(std::string(link) + ".tmp.", 0) == 0) links.push_back(folder + "/" + text);
    }
    checked::status(io, folder + "/" + checkpoint_folder_name({Kind::kFinal, committed.step, ""}) + "/" + kManifestName, &manifest);
  });
  const std::vector<int64_t> steps = final_steps(names);
  const int64_t oldest = oldest_kept(folder, steps, committed.step, std::max(committed.keep, 2));
  const auto has_valid = [&](int64_t step) {
    const std::string path = folder + "/" + checkpoint_folder_name({Kind::kFinal, step, ""});
    return std::find(steps.begin(), steps.end(), step) != steps.end() && (step == committed.step || structurally_valid(path));
  };
  const auto is_too_old = [&](const CheckpointName& name) { return name.step < oldest && name.step != committed.best_step; };

  std::vector<std::string> doomed;
  bool renamed = false;
  for (const CheckpointName& name : names) {
    const std::string path = folder + "/" + checkpoint_folder_name(name);
    attempt([&] {
      if (name.kind == Kind::kFinal && is_too_old(name)) {
        const std::string aside = set_aside(io, folder, name.step, nonce);
        renamed = renamed || !aside.empty();
        if (!aside.empty()) doomed.push_back(aside);
      }
      if (name.kind == Kind::kAside && (is_too_old(name) || has_valid(name.step))) doomed.push_back(path);
      if (name.kind == Kind::kTemporary && writer_is_dead(io, path, name.nonce, manifest.modified_seconds)) doomed.push_back(path);
    });
  }
  // The new names must be durable before the content is removed, or a partial checkpoint could reappear under its final name.
  const size_t failures_before = failures.size();
  if (renamed) attempt([&] { checked::sync_folder(io, folder); });
  if (failures.size() != failures_before) return failures;
  for (const std::string& path : doomed) attempt([&] { checked::remove_tree(io, path, kManifestName); });
  for (const std::string& link : links) {
    attempt([&] {
      FileStatus status;
      if (checked::status(io, link, &status) && status.modified_seconds < manifest.modified_seconds - kStaleSeconds)
        checked::unlink_if_exists(io, link);
    });
  }
  return failures;
}

namespace {

namespace fs = std::filesystem;

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

/// Paths of the checkpoints of a folder, newest first, without superseded ones (.old). An .old that is newer than all final ones was left
/// by a kill during a replacement and is included.
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

/// The steps of `folders` as text.
std::string steps_there(const std::vector<std::string>& folders) {
  std::vector<std::string> steps;
  for (const std::string& folder : folders) steps.push_back(std::to_string(step_of(folder)));
  return join(steps, ", ");
}

/// For an invalid RUN/checkpoints/latest the newest checkpoint beside it; "" if there is none, or for other paths.
std::string newest_beside(const std::string& path, const std::string& why) {
  if (fs::path(path + "/").parent_path().filename() != kLatestName) return "";
  const std::vector<std::string> beside = list_standing(parent_folder(path));
  if (beside.empty()) return "";
  log_warning(concat(path, why, "; taken is ", beside.front()));
  return beside.front();
}

/// Whether `path` is or names a single step folder, not a folder of several.
bool is_one_checkpoint(const std::string& path, const std::vector<std::string>& found) {
  std::error_code ignored;
  return found.size() == 1 && (fs::equivalent(path, found.front(), ignored) || fs::is_regular_file(path, ignored));
}

/// The chosen one of the folders `found`.
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
    if (exists(best + "/" + kManifestName)) return best;  // A copy of a symbolic link's target.
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

/// Names the newest valid checkpoint other than `damaged`.
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
  if (is_one && target.empty())  // There may be newer ones than the copy.
    if (const std::string newest = newest_beside(path, " is a folder, the copy of what was the newest once"); !newest.empty())
      return {newest};
  if (is_one) return {place};
  if (read_pointer(path) != target) return find_checkpoints(path);  // `latest` has changed meanwhile.
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

Checkpoint open_selected_checkpoint(const std::string& path, const std::string& which) {
  constexpr int kTries = 100;  // A running training removes old ones.
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
