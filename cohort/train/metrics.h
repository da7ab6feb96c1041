#pragma once
// Writes the records of a run (cohort/record/) on rank 0: JSON lines to metrics.jsonl and, with --json, to stdout; metrics.csv; TensorBoard
// events. A full disk does not end the training: records that cannot be written are dropped whole and counted, with a warning, and with a
// line in metrics.jsonl once it can be written again.

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cohort/record/run_event.h"

namespace cohort {

/// The step at which a resumed run continues.
struct ResumedAt {
  int64_t step = 0;              ///< 0: a new run.
  bool evaluates_again = false;  ///< Nothing is left to train, so that step is evaluated again, and its old evaluation is dropped.
};

/// One thread. Lines are whole or absent.
class Metrics {
 public:
  /// Appends to the files of `run`. First drops lines of steps after `resumed.step`, which a killed run wrote after its checkpoint, records
  /// of an end, and an incomplete last line. Error(kFailed) if the files cannot be opened. With `has_labels` a new metrics.csv has a column
  /// val_precision.
  Metrics(const std::string& run, const ResumedAt& resumed, bool to_stdout, bool has_labels);
  ~Metrics();
  Metrics(const Metrics&) = delete;

  void step(const StepRecord& step);
  void evaluation(const EvalRecord& evaluation);
  void noise_scale(const NoiseRecord& noise);
  void mistakes(const MistakesRecord& mistakes);
  /// For TensorBoard: the run's settings in TOML syntax, and how the process ended.
  void begin_session(const std::vector<std::pair<std::string, std::string>>& settings);
  void end_session(bool succeeded);
  /// Any other record; those that only the report reads are not printed to stdout.
  void event(const RunEvent& event, bool to_stdout_too = true);
  void flush();
  /// Called last. Returns what could not be written, as "metrics.jsonl lacks 3 lines", or "".
  std::string finish();

 private:
  class Output;
  struct Outputs;
  void scalars(int64_t step, const std::vector<std::pair<const char*, double>>& values);
  bool is_in_events(int64_t step, const char* event) const;

  std::unique_ptr<Outputs> outputs_;
  bool has_precision_ = false;  // metrics.csv has the column val_precision.
  int64_t resume_step_;
  std::set<std::string> were_there_;  // Events of that step that the process before has written.
};

}  // namespace cohort
