#pragma once
// Everything that one rank holds during a run. Inside of trainer.h: trainer.cpp trains, run_saving.cpp takes the folder, saves and goes on,
// run_reports.cpp tells.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/comm/group.h"
#include "cohort/data/loader.h"
#include "cohort/data/source.h"
#include "cohort/job/job.h"
#include "cohort/models/layer_graph.h"
#include "cohort/report/progress.h"
#include "cohort/train/evaluate.h"
#include "cohort/train/in_turn.h"
#include "cohort/train/measured/balance.h"
#include "cohort/train/metrics.h"
#include "cohort/train/noise_meter.h"
#include "cohort/train/parallelize.h"
#include "cohort/train/run/run_folder.h"
#include "cohort/train/run/run_state.h"
#include "cohort/train/run/train_job.h"
#include "cohort/train/training_step.h"
#include "cohort/world/status.h"
#include "cohort/world/world.h"

namespace cohort {

/// Everything that one rank holds during a run.
class Run {
 public:
  Run(const Job& job, const DataSet& data, const World& world, const TrainOptions& options);
  TrainResult train();

 private:
  void take_folder();
  DataIdentity data_identity();
  void set_up_model();
  void set_up_step();
  /// The layout whose arithmetic this run does: its own, or the one whose ranks it stands for.
  const Layout& lockstep_layout() const { return options_.in_turn ? *options_.in_turn : layout_; }
  EvaluationOptions evaluation_options();
  void warn();
  LoaderOptions loader_options() const;
  void rebalance(Loader& loader, int64_t number, const StepMetrics& metrics, int64_t num_samples);
  void evaluate_now(int64_t step, bool last);
  void resume();
  void tell_skipped(int64_t step);
  bool save_is_due(int64_t step) const;
  void save(int64_t step, bool is_last);
  void save_now(int64_t step);
  void write_start();
  void write_end(bool interrupted);
  void write_exchange_advice();
  void write_rank_totals();
  Json describe_part() const;
  Json describe_stages() const;
  void write_text_sample(int64_t step, LayerGraph& model);
  std::shared_ptr<LayerGraph> whole_model() const;
  bool is_first() const { return world_.rank == 0; }
  bool reports_here() const { return is_first() && options_.reports; }

  const Job job_;
  Config config_;  // The job's, with defaults and folder filled in.
  const DataSet& data_;
  World world_;
  TrainOptions options_;
  const Layout& layout_;
  Injection injection_;
  c10::Device device_;
  Group group_;
  std::shared_ptr<LayerGraph> model_;
  AlteredModel altered_;
  ParallelModel parallel_;             // From set_up_model() on.
  std::unique_ptr<InTurn> in_turn_;    // Where this process stands for the ranks of another layout.
  std::unique_ptr<NoiseMeter> noise_;  // Null where the noise scale is not asked for.
  std::unique_ptr<TrainingStep> step_;
  Shares shares_;
  std::unique_ptr<Balance> balance_;
  std::unique_ptr<RunFolder> folder_;  // Null where another process has it.
  std::unique_ptr<RunState> state_;
  std::unique_ptr<Metrics> metrics_;  // Rank 0 only.
  std::unique_ptr<Progress> progress_;
  StatusPage status_;
  int64_t first_step_ = 0, total_steps_ = 0, saved_step_ = -1, evaluated_step_ = -1;
  bool last_save_failed_ = false, skip_is_told_ = false;
  std::vector<double> step_seconds_;
  StepMetrics totals_;
  int64_t samples_ = 0;
  double load_seconds_ = 0;         // Of the checkpoint that the run goes on from.
  double first_step_seconds_ = -1;  // From the command to the end of the first step.
  Evaluation last_evaluation_;
  TrainResult result_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace cohort
