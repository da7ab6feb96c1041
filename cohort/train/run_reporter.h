#pragma once
// What a run tells while it trains and at its end: lines of metrics, the progress line, the totals of its ranks, a sample of text, advice,
// the report.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/plan/sync_advice.h"
#include "cohort/record/run_event.h"
#include "cohort/report/live/live_report.h"
#include "cohort/runlog/progress.h"
#include "cohort/train/advice/run_advice.h"
#include "cohort/train/evaluation_text.h"
#include "cohort/train/metrics.h"
#include "cohort/train/run_saver.h"
#include "cohort/train/run_setup.h"
#include "cohort/train/train_result.h"
#include "cohort/world/link_estimate.h"

namespace cohort {

class LayerGraph;

/// Every rank has one and calls all of it alike; rank 0 writes, where the run reports at all. One thread; references must outlive it.
class RunReporter {
 public:
  /// `pace`: of a way of waiting for one another, by which others than the run's are judged (advise_sync()).
  RunReporter(RunSetup& run, const RunSaver& saver, PaceOfSync pace);

  void start();
  /// `is_last`: of the run, so that its line is written whatever --log-every says.
  void step(const StepResult& step, bool is_last);
  void shares(int64_t from_step, const std::vector<double>& shares);
  void evaluation(int64_t step, const Evaluation& evaluation);
  void note_evaluation();
  void progress(const StepRecord& metrics);
  void checkpoint(int64_t step, const std::string& path, double seconds);
  /// Any other line; not on stdout. Of workers that did not wait for one another it goes into the advice at the end.
  void event(const RunEvent& event);
  /// Seconds on a clock of the run's own, for its lines.
  void set_clock(std::function<double()> clock) { clock_ = std::move(clock); }
  void checkpoint_failed(int64_t step, const std::string& cause);
  /// Collective. Fills in the seconds of `result`.
  void end(TrainResult& result);

 private:
  void serve();
  void tell_skipped(int64_t step);
  void tell_data() const;
  void write_waste();
  bool has_plain_replicas() const;
  void write_exchange_advice(double step_seconds, const std::optional<LinkEstimate>& link);
  void write_sync_advice(double step_seconds, const LinkEstimate& link);
  void write_trace();
  void compare_with_guessing(const TrainResult& result);
  DoneRecord describe_end(const TrainResult& result, const std::vector<RankRecord>& ranks) const;
  /// The totals of all ranks, which rank 0 gets.
  RanksRecord write_end(const TrainResult& result);
  void write_text_sample(int64_t step, LayerGraph& model);
  std::string result_sentence(const TrainResult& result) const;

  RunSetup& run_;
  const RunSaver& saver_;
  PaceOfSync pace_;
  std::unique_ptr<Metrics> metrics_;          // Null where nothing is written.
  std::unique_ptr<Progress> progress_;        // Likewise.
  std::unique_ptr<report::LiveReport> live_;  // Null without --serve.
  std::vector<double> step_seconds_;
  std::vector<double> own_seconds_;  // Of each step but the first, which allocates: what it took beside exchanging and waiting for others.
  std::optional<AsyncRecord> account_;  // Where workers do not wait for one another.
  RankRecord totals_{
      .samples = 0, .data_seconds = 0, .compute_seconds = 0, .exchange_seconds = 0, .optimizer_seconds = 0};  // Of this rank.
  double first_step_seconds_ = -1;  // From the command to the end of the first step.
  Evaluation last_evaluation_;
  int64_t evaluated_step_ = -1;
  Guessing guessing_;
  bool skip_is_told_ = false;
  std::function<double()> clock_;  // Empty where there is none.
  ShareWaste waste_;
};

}  // namespace cohort
