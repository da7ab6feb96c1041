#pragma once
// All that one rank trains with, made before the loop begins. Inside of trainer.h: run_saver.h saves it and goes on, run_reporter.h tells
// of it, trainer.cpp is the loop.

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
#include "cohort/train/step/in_turn.h"
#include "cohort/train/step/noise_meter.h"
#include "cohort/train/step/parallelize.h"
#include "cohort/train/step/step_trace.h"
#include "cohort/train/step/training_step.h"
#include "cohort/train/train_options.h"
#include "cohort/world/status.h"
#include "cohort/world/world.h"

namespace cohort {

class LayerGraph;

/// Of LibTorch, as asked for or as this rank's part of its host's cores.
int threads_of_rank(const Config& config, const World& world);

/// One thread. References that it is given must outlive it.
struct RunSetup {
  /// Collective. Errors as train() has them.
  RunSetup(const Job& job, const DataSet& data, const World& world, const TrainOptions& options);
  RunSetup(const RunSetup&) = delete;
  RunSetup& operator=(const RunSetup&) = delete;

  bool is_first() const { return world.rank == 0; }
  int num_workers() const { return options.num_served > 0 ? options.num_served : world.size; }
  bool reports_here() const { return is_first() && options.reports; }
  /// The layout whose arithmetic this run does: its own, or the one whose ranks it stands for.
  const Layout& lockstep_layout() const { return options.in_turn ? *options.in_turn : job.layout; }
  LoaderOptions loader_options(int64_t first_step) const;
  EvaluationOptions evaluation_options();

  const std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
  Job job;  ///< Its configuration has the defaults and the folder filled in: the only one of the run.
  Config& config = job.config;
  const DataSet& data;
  const World world;
  const TrainOptions options;
  const Injection injection;
  const c10::Device device;
  StatusPage status;
  Group group;
  std::vector<std::string> device_names;   ///< Of all ranks; empty where all are on the CPU and nobody said so.
  std::unique_ptr<RunFolder> folder;       ///< Null where another process has it.
  std::unique_ptr<WatchedFolder> watched;  ///< Of the one who reports.
  int64_t total_steps = 0;
  std::shared_ptr<LayerGraph> model;      ///< This rank's part.
  std::string began_with, frozen;         ///< Sentences on --init-from and --freeze, for the one who reports; see initial_model.h.
  std::string rounded;                    ///< One on --quantize-aware.
  std::optional<PrunableModel> prunable;  ///< Where weights are pruned: those of the whole model.
  AlteredModel altered;
  ParallelModel parallel;
  std::unique_ptr<InTurn> in_turn;          ///< Where this process stands for the ranks of another layout.
  std::unique_ptr<NoiseMeter> noise;        ///< Null where the noise scale is not asked for.
  StepTrace trace;                          ///< Of its last steps, where the run reports.
  std::unique_ptr<StudentHints> hints;      ///< Null where no layers are compared.
  double seconds_of_student = 0;            ///< Rank 0's, where it is for a measurement to say how its teacher answers.
  std::unique_ptr<TeacherAnswers> teacher;  ///< Null where there is none.
  std::unique_ptr<Pruner> pruner;           ///< Null where nothing is pruned.
  std::unique_ptr<TrainingStep> step;
  std::optional<RunForecast> forecast;  ///< Rank 0's.

 private:
  void take_folder();
  void make_model();
  void make_teacher();
  void make_step();
};

/// Once layout and checkpoint are known to fit: writes the run's config.toml and plan.json, settles when to evaluate, and says what a user
/// should know before the training starts. Collective.
void begin_run(RunSetup& run);

}  // namespace cohort
