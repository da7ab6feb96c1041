// Taking a run's folder, saving into it, going on from what was saved.
//
// A save that fails for want of room (or of anything else that the system refuses) loses nothing that was saved before. In the middle of a
// training one failure is a warning, since a disk is often full for a moment only and the next save may succeed; the second in a row ends
// the training while its last checkpoint is not older than one save. The save at the end, with which all work since the one before would
// go, is tried for some seconds. All ranks see the same failure, so they agree without a message.
#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "cohort/base/clock.h"
#include "cohort/base/error.h"
#include "cohort/base/log.h"
#include "cohort/base/text/json.h"
#include "cohort/data/fingerprint.h"
#include "cohort/train/run/run.h"
#include "cohort/train/run/run_folder.h"
#include "cohort/train/run/run_state.h"

namespace cohort {
namespace {

constexpr int kTriesAtEnd = 5;
constexpr std::chrono::seconds kBetweenTries{2};

}  // namespace

/// Rank 0's folder is everybody's: the clocks of ranks differ, and it alone may have found a name that is free.
void Run::take_folder() {
  if (is_first() && !options_.folder_is_held && (options_.reports || config_.run.empty())) {
    folder_ = std::make_unique<RunFolder>(config_);
    config_.run = folder_->path();
  }
  const std::string first = group_.all_gather_text(config_.run, "the run folder").front();
  if (config_.run.empty()) config_.run = first;
}

/// Hosts may have files of the same name that differ; the ranks of one host share theirs.
DataIdentity Run::data_identity() {
  if (!options_.reports) return {data_.train->num_samples(), ""};
  const std::string mine = world_.local_rank == 0 || is_first() ? data_fingerprint(data_) : "";
  const std::vector<std::string> all = group_.all_gather_text(mine, "the fingerprint of the data");
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].empty() && all[rank] != all.front())
      fail(ErrorCode::kBadInput, "rank ", rank, " has other data than rank 0 under the name ", config_.data, " (fingerprint ", all[rank],
           ", rank 0 has ", all.front(), "); bring the same files to every host");
  return {data_.train->num_samples(), all.front()};
}

void Run::resume() {
  Json extra;
  const auto loading = std::chrono::steady_clock::now();
  first_step_ = saved_step_ = state_->load_latest(&extra);
  load_seconds_ = seconds_since(loading);
  if (extra.contains("loss_scaler")) step_->load(extra["loss_scaler"]);
  if (noise_ && extra.contains("noise_scale")) noise_->load(extra["noise_scale"]);
}

bool Run::save_is_due(int64_t step) const {
  if (config_.checkpoint_every == 0) return evaluated_step_ == step;
  return config_.checkpoint_every > 0 && step % config_.checkpoint_every == 0;
}

void Run::save_now(int64_t step) {
  const auto began = std::chrono::steady_clock::now();
  Json extra{{"loss_scaler", step_->state()}};
  if (noise_) extra["noise_scale"] = noise_->state();
  if (parallel_.part->pipeline()) extra["stages"] = describe_stages();
  const std::string path = state_->save(step, extra);
  const double seconds = seconds_since(began);
  saved_step_ = step;
  if (!reports_here()) return;
  metrics_->event(Json{{"event", "checkpoint"}, {"step", step}, {"path", path}, {"seconds", seconds}});
  metrics_->flush();
}

void Run::save(int64_t step, bool is_last) {
  if (saved_step_ == step) return;
  for (int tries = 1;; ++tries) {
    try {
      save_now(step);
      last_save_failed_ = false;
      return;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kFailed) throw;
      const std::string newest =
          saved_step_ < 0 ? "no checkpoint was saved before" : concat("the newest checkpoint is of step ", saved_step_);
      if (is_last ? tries == kTriesAtEnd : last_save_failed_)
        fail(ErrorCode::kFailed, "the checkpoint of step ", step, " could not be saved, ",
             is_last ? concat("in ", kTriesAtEnd, " tries") : "nor the one before it", ": ", error.what(), "; ", newest);
      const std::string next = is_last ? "trying again" : "the training goes on, and ends if the next one fails too";
      if (is_first()) log_warning(concat("the checkpoint of step ", step, " could not be saved: ", error.what(), "; ", newest, "; ", next));
      if (reports_here())
        metrics_->event(Json{{"event", "checkpoint_failed"}, {"step", step}, {"cause", error.what()}}, /*to_stdout_too=*/false);
    }
    last_save_failed_ = true;
    if (!is_last) return;
    std::this_thread::sleep_for(kBetweenTries);
  }
}

}  // namespace cohort
