// Removal after a commit. Nothing is removed under its own name: a checkpoint is first renamed to step-N.old.<nonce>, so that a name
// without suffix is complete at every instant, and loses its manifest first, so that a half-removed one cannot be taken for a checkpoint.
//
// Kept: the checkpoint just committed (step S); all of later steps (a job that went back to S does not own them); below S the newest keep -
// 1 that are structurally valid, and whatever lies between; the best one. Removed: all other older ones; every .old whose step has a whole
// final folder or is older than the kept. A .old without a final folder is left: a crash between two renames made it, and it is the only
// copy of its step.
//
// Temporary folders of this or other jobs go when their writer is certainly dead (its nonce, or writer.json; process_identity.h), or, where
// that cannot be known (another host, no writer.json), when nothing in them changed in the hour before this commit. A living writer is
// never disturbed.

#include "cohort/checkpoint/retention.h"

#include <algorithm>
#include <exception>
#include <functional>

#include "cohort/base/files/file.h"
#include "cohort/base/files/process_identity.h"
#include "cohort/base/text/log.h"
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

/// The newest change of a folder or of a file in it.
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
  // writer.json names the process in full; the nonce, 16 bits of whose host are hashed, counts only where that is gone.
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
  // From an earlier attempt; its step has a final folder, so it is superseded.
  if (checked::status(io, aside, &status)) {
    checked::sync_folder(io, folder);  // What superseded it may not be durable yet.
    checked::remove_tree(io, aside, kManifestName);
  }
  return checked::rename_if_exists(io, current, aside) ? aside : "";
}

void remove_unfinished(CheckpointIo& io, const std::string& folder) {
  std::vector<std::string> names;
  if (io.list(folder, &names) < 0) return;  // There is none yet.
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
  // The new names must be durable before the content goes, else a half-removed checkpoint could come back under its final name.
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

}  // namespace cohort
