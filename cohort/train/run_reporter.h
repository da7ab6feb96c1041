#pragma once
// Everything that a run reports while it trains and at its end: metrics, the progress line, totals of its ranks, a text sample, advice, the
// report.

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

/// Every rank has one and makes the same calls; only rank 0 writes, and only if the run reports. One thread; references must outlive it.
class RunReporter {
 public:
  /// `pace` predicts the pace of a sync mode, for the advice on other modes than the run's (advise_sync()).
  RunReporter(RunSetup& run, const RunSaver& saver, PaceOfSync pace);

  void start();
  /// The line of the run's last step is written whatever --log-every says.
  void step(const StepResult& step, bool is_last);
  void shares(int64_t from_step, const std::vector<double>& shares);
  void evaluation(int64_t step, const Evaluation& evaluation);
  void note_evaluation();
  void progress(const StepRecord& metrics);
  void checkpoint(int64_t step, const std::string& path, double seconds);
  /// Writes any other record to metrics.jsonl alone. An AsyncRecord also goes into the advice at the end.
  void event(const RunEvent& event);
  /// The simulated clock of the run, in seconds, for its records.
  void set_clock(std::function<double()> clock) { clock_ = std::move(clock); }
  /// Collective. Fills in the seconds of `result`.
  void end(TrainResult& result);

 private:
  void write_start();
  std::string start_sentence() const;
  void serve();
  void note_data() const;
  void warn_of_skipped(int64_t step);
  bool has_plain_replicas() const;
  void write_text_samples(int64_t step);
  void write_text_sample(int64_t step, LayerGraph& model);
  void write_advice(double step_seconds);
  void write_exchange_advice(double step_seconds, const std::optional<LinkEstimate>& link);
  void write_waste();
  void write_sync_advice(double step_seconds, const LinkEstimate& link);
  void write_trace();
  void compare_with_guessing(const TrainResult& result);
  RanksRecord write_end(const TrainResult& result);
  DoneRecord describe_end(const TrainResult& result, const std::vector<RankRecord>& ranks) const;
  std::string write_report();
  std::string result_sentence(const TrainResult& result) const;

  RunSetup& run_;
  const RunSaver& saver_;
  PaceOfSync pace_;
  std::unique_ptr<Metrics> metrics_;  // Null where this rank writes nothing, as is progress_.
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<report::LiveReport> live_;  // Null without --serve.
  std::vector<double> step_seconds_;
  std::vector<double> own_seconds_;          // Step times without the exchange; the first step, which allocates, is left out.
  std::optional<AsyncRecord> async_record_;  // Set by asynchronous workers.
  RankRecord totals_{
      .samples = 0, .data_seconds = 0, .compute_seconds = 0, .exchange_seconds = 0, .optimizer_seconds = 0};  // This rank's totals.
  double first_step_seconds_ = -1;  // From the command to the end of the first step.
  Evaluation last_evaluation_;
  int64_t evaluated_step_ = -1;
  Guessing guessing_;
  bool skip_was_reported_ = false;
  std::function<double()> clock_;  // Empty where there is none.
  ShareWaste waste_;
};

}  // namespace cohort
