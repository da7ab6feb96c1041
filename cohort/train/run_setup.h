#pragma once
// Everything that one rank trains with, made before the training loop begins.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/data/loader.h"
#include "cohort/data/source/source.h"
#include "cohort/job/job.h"
#include "cohort/train/advice/balance.h"
#include "cohort/train/distil/teacher.h"
#include "cohort/train/model/evaluate.h"
#include "cohort/train/model/pruner.h"
#include "cohort/train/run_folder.h"
#include "cohort/train/run_forecast.h"
#include "cohort/train/step/noise_meter.h"
#include "cohort/train/step/parallelize.h"
#include "cohort/train/step/sequential_ranks.h"
#include "cohort/train/step/step_trace.h"
#include "cohort/train/step/training_step.h"
#include "cohort/train/train_options.h"
#include "cohort/world/status.h"
#include "cohort/world/world.h"

namespace cohort {

class LayerGraph;

/// LibTorch's threads on this rank: --threads, or its part of the host's cores.
int num_rank_threads(const Config& config, const World& world);

/// One thread. References must outlive it.
struct RunSetup {
  /// Collective. Errors as train().
  RunSetup(const Job& job, const DataSet& data, const World& world, const TrainOptions& options);
  RunSetup(const RunSetup&) = delete;
  RunSetup& operator=(const RunSetup&) = delete;

  bool is_first() const { return world.rank == 0; }
  int num_workers() const { return options.num_served > 0 ? options.num_served : world.size; }
  bool reports_here() const { return is_first() && options.reports; }
  /// The layout whose arithmetic this run does: its own, or the one whose ranks it runs sequentially.
  const Layout& lockstep_layout() const { return options.sequential ? *options.sequential : job.layout; }
  LoaderOptions loader_options(int64_t first_step) const;
  EvaluationOptions evaluation_options();

  const std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
  Job job;
  Config& config = job.config;  ///< With defaults and run folder filled in: the only copy while the run trains.
  const DataSet& data;
  const World world;
  const TrainOptions options;
  const Injection injection;
  const c10::Device device;
  StatusPage status;
  Group group;
  std::vector<std::string> device_names;   ///< Names of all ranks' devices; empty if all are on the CPU.
  std::unique_ptr<RunFolder> folder;       ///< Null if another process holds it.
  std::unique_ptr<WatchedFolder> watched;  ///< On the rank that reports.
  int64_t total_steps = 0;
  std::shared_ptr<LayerGraph> model;        ///< This rank's part.
  std::string began_with, frozen, rounded;  ///< Sentences on --init-from, --freeze and --quantize-aware.
  std::optional<PrunableModel> prunable;    ///< With --prune: the weights of the whole model.
  AlteredModel altered;
  ParallelModel parallel;
  std::unique_ptr<SequentialRanks> sequential;  ///< Null unless this process runs the ranks of another layout.
  std::unique_ptr<NoiseMeter> noise;            ///< Null unless the noise scale is measured.
  StepTrace trace;                              ///< Trace of the last steps, if the run reports.
  std::unique_ptr<StudentHints> hints;          ///< Null without --hint.
  double student_seconds = 0;                   ///< Rank 0's seconds for a sample, if --teacher-answers is decided by a measurement.
  std::unique_ptr<TeacherAnswers> teacher;      ///< Null without a teacher.
  std::unique_ptr<Pruner> pruner;               ///< Null without --prune.
  std::unique_ptr<TrainingStep> step;
  std::optional<RunForecast> forecast;  ///< Rank 0's.

 private:
  void take_folder();
  void make_model();
  void make_teacher();
  void make_step();
};

/// Writes the run's config.toml and plan.json, sets eval_every, and logs what a user should know before the training starts. Called once
/// layout and checkpoint are known to fit. Collective.
void begin_run(RunSetup& run);

}  // namespace cohort
