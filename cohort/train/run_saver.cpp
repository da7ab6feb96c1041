#include "cohort/train/run_saver.h"

#include <ATen/Parallel.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/process_identity.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/checkpoint/names.h"
#include "cohort/data/source/fingerprint.h"
#include "cohort/job/specs/small_specs.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/train/run_records.h"
#include "cohort/train/run_reporter.h"

namespace cohort {
namespace {

Json to_json(const EvaluatedStep& evaluated) {
  if (evaluated.step < 0) return nullptr;
  Json json{{"step", evaluated.step},
            {"val_loss", evaluated.val_loss},
            {"val_error", std::isfinite(evaluated.val_error) ? Json(evaluated.val_error) : Json(nullptr)}};
  if (std::isfinite(evaluated.val_precision)) json["val_precision"] = evaluated.val_precision;
  return json;
}

EvaluatedStep evaluated_from(const Json& json) {
  if (!json.is_object()) return {};
  const auto number = [&](const char* name) { return json.contains(name) && json[name].is_number() ? json[name].get<double>() : kUnknown; };
  EvaluatedStep evaluated{.val_error = number("val_error"), .val_precision = number("val_precision")};
  evaluated.step = json.value("step", evaluated.step);
  evaluated.val_loss = json.value("val_loss", evaluated.val_loss);
  return evaluated;
}

constexpr int kTriesAtEnd = 5;
constexpr std::chrono::seconds kBetweenTries{2};

/// Hosts may have different files under the same name, so one rank of each host reads its fingerprint.
DataIdentity data_identity(RunSetup& run) {
  const std::string teacher = run.teacher ? run.teacher->fingerprint() : "";
  if (!run.options.reports) return {run.data.train->num_samples(), "", teacher};
  const std::string mine = run.world.local_rank == 0 || run.is_first() ? data_fingerprint(run.data) : "";
  const std::vector<std::string> all = run.group.all_gather_text(mine, "the fingerprint of the data");
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].empty() && all[rank] != all.front())
      fail(ErrorCode::kBadInput, "rank ", rank, " has other data than rank 0 under the name ", run.config.data, " (fingerprint ", all[rank],
           ", rank 0 has ", all.front(), "); bring the same files to every host");
  return {run.data.train->num_samples(), all.front(), teacher};
}

/// What one process needs to compute the evaluation again with the same bits.
Json describe_evaluation(RunSetup& run) {
  const EvaluationOptions how = run.evaluation_options();
  return {{"chunk_samples", how.batch_size}, {"shares", how.count}, {"threads", at::get_num_threads()}};
}

/// [{"layer": "conv1", "stage": 0, "worker": 0}, ...]
Json describe_stages(const RunSetup& run) {
  Json layers = Json::array();
  for (size_t layer = 0; layer < run.parallel.plan.stages.stage_of.size(); ++layer) {
    const int stage = run.parallel.plan.stages.stage_of[layer];
    layers.push_back(Json{{"layer", run.model->layers()[layer].name},
                          {"stage", stage},
                          {"worker", run.parallel.plan.stages.worker_of_stage.at(static_cast<size_t>(stage))}});
  }
  return layers;
}

}  // namespace

bool BestStep::add(const EvaluatedStep& evaluated) {
  last_ = evaluated;
  is_better_ = evaluated.val_loss < best_.val_loss;
  if (!is_better_) ++evaluations_since_;
  return is_better_;
}

void BestStep::saved(int64_t step) {
  if (last_.step != step || !is_better_) return;
  best_ = last_;
  is_better_ = false;
  evaluations_since_ = 0;
}

Json BestStep::state() const { return {{"last", to_json(last_)}, {"best", to_json(best_)}, {"evaluations_since", evaluations_since_}}; }

void BestStep::load(const Json& state) {
  last_ = evaluated_from(state.value("last", Json()));
  best_ = evaluated_from(state.value("best", Json()));
  evaluations_since_ = state.value("evaluations_since", int64_t{0});
}

RunSaver::RunSaver(RunSetup& run)
    : run_(run), state_(run.job, *run.model, *run.parallel.strategy, run.group, run.parallel.places(), data_identity(run)) {
  if (run.config.resume) resume();
  if (first_step_ > run.total_steps)
    fail(ErrorCode::kBadInput, name_settings("--resume: the run has done "), first_step_, " steps, and ", run.total_steps,
         name_settings(" are asked for; give more --steps or --epochs, or leave them out"));
}

void RunSaver::resume() {
  Json extra;
  const auto loading = std::chrono::steady_clock::now();
  first_step_ = saved_step_ = state_.load_latest(&extra, &loaded_);
  load_seconds_ = seconds_since(loading);
  saved_ = loaded_;
  if (extra.contains("evaluations")) best_.load(extra["evaluations"]);
  const std::string folder = run_.config.run + "/checkpoints";
  std::error_code ignored;
  if (run_.world.rank == 0 && best_.best().step >= 0 && !std::filesystem::exists(folder + "/" + kBestName, ignored))
    CheckpointWriter(folder, best_.best().step, process_nonce()).point_best(best_.best().step);
  if (extra.contains("loss_scaler")) run_.step->load(extra["loss_scaler"]);
  if (run_.noise && extra.contains("noise_scale")) run_.noise->load(extra["noise_scale"]);
}

std::string RunSaver::reason_to_end() const {
  const EvaluatedStep& last = best_.last();
  if (first_step_ > 0 && last.step == first_step_) {
    const std::optional<Goal>& goal = run_.job.goal;
    if (goal && goal->reached({{"val_error", last.val_error}, {"val_loss", last.val_loss}, {"val_precision", last.val_precision}}))
      return "goal";
    if (run_.config.patience > 0 && best_.evaluations_since() >= run_.config.patience) return "patience";
  }
  return first_step_ >= run_.total_steps ? "steps" : "";
}

void RunSaver::save_now(int64_t step, RunReporter& reporter) {
  const auto began = std::chrono::steady_clock::now();
  Json extra{{"loss_scaler", run_.step->state()}};
  if (run_.noise) extra["noise_scale"] = run_.noise->state();
  if (run_.parallel.part->pipeline()) extra["stages"] = describe_stages(run_);
  BestStep best = best_;
  best.saved(step);
  extra["evaluations"] = best.state();
  if (run_.options.reports) extra["evaluation"] = describe_evaluation(run_);
  saved_ = state_.save(step, extra, best.best().step, /*makes_run=*/!run_.watched);
  best_ = best;
  saved_step_ = step;
  reporter.checkpoint(step, saved_, seconds_since(began));
}

/// Throws if the folder was moved or removed.
void RunSaver::check_not_moved(int64_t step, RunReporter& reporter) {
  const std::optional<std::string> moved = run_.watched ? run_.watched->moved_to() : std::nullopt;
  const std::string found =
      run_.group.all_gather_text(moved ? concat("to ", *moved) : "", "whether the run's folder is where it was").front();
  if (found.empty()) return;
  const std::string before = run_.config.run, now = found.substr(3);
  if (now.empty())
    fail(ErrorCode::kEnvironment, "the run's folder ", before,
         " was removed while it trained, with what was saved; the training ends after step ", step, ", and nothing is saved");
  run_.config.run = now;
  save_now(step, reporter);
  fail(ErrorCode::kEnvironment, "the run's folder ", before, " was moved to ", now,
       " while it trained; the training ends, with a checkpoint of step ", step, " there; go on with: ", resume_command(now));
}

void RunSaver::save(int64_t step, bool is_last, RunReporter& reporter) {
  if (saved_step_ == step) return;
  check_not_moved(step, reporter);
  for (int tries = 1;; ++tries) {
    try {
      save_now(step, reporter);
      last_failed_ = false;
      return;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kFailed) throw;
      check_not_moved(step, reporter);  // It may have been moved since the check before.
      const std::string newest =
          saved_step_ < 0 ? "no checkpoint was saved before" : concat("the newest checkpoint is of step ", saved_step_);
      if (is_last ? tries == kTriesAtEnd : last_failed_)
        fail(ErrorCode::kFailed, "the checkpoint of step ", step, " could not be saved, ",
             is_last ? concat("in ", kTriesAtEnd, " tries") : "nor the one before it", ": ", error.what(), "; ", newest);
      const std::string next = is_last ? "trying again" : "the training goes on, and ends if the next one fails too";
      if (run_.is_first())
        log_warning(concat("the checkpoint of step ", step, " could not be saved: ", error.what(), "; ", newest, "; ", next));
      reporter.event(CheckpointFailedRecord{step, error.what()});
    }
    last_failed_ = true;
    if (!is_last) return;
    std::this_thread::sleep_for(kBetweenTries);
  }
}

}  // namespace cohort
