#pragma once
// What a run reports: lines of JSON to metrics.jsonl and, with --json, to stdout; metrics.csv; TensorBoard events. Only rank 0 has one.
// A disk that is full, for a moment or for good, does not end the training: what cannot be written is left out whole and counted, a warning
// says so, and a line in metrics.jsonl as soon as it fits. What a line holds: cohort/record/.

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
  bool evaluates_again = false;  ///< That step, because nothing is left to train: its evaluation is to stand there once.
};

/// One thread. Lines are whole or absent.
class Metrics {
 public:
  /// Appends to the files of `run`; lines of steps after `resumed.step` (what a killed run left beyond its checkpoint) are dropped first,
  /// those of an end, and a part of a line at the end. Error(kFailed) where the files cannot be opened. With `has_labels` metrics.csv has a
  /// column val_precision, if it does not exist yet: one that does keeps its columns.
  Metrics(const std::string& run, const ResumedAt& resumed, bool to_stdout, bool has_labels);
  ~Metrics();
  Metrics(const Metrics&) = delete;

  void step(const StepRecord& step);
  void evaluation(const EvalRecord& evaluation);
  void noise_scale(const NoiseRecord& noise);
  void mistakes(const MistakesRecord& mistakes);
  /// For TensorBoard: the run's settings, as TOML writes them, and how the process ended.
  void begin_session(const std::vector<std::pair<std::string, std::string>>& settings);
  void end_session(bool succeeded);
  /// Any other event; `to_stdout_too` false for what only the report reads.
  void event(const RunEvent& event, bool to_stdout_too = true);
  void flush();
  /// The last call: all is on the disk as far as it will be. Returns what is missing, as "metrics.jsonl lacks 3 lines", "" for nothing.
  std::string finish();

 private:
  class Output;
  struct Outputs;
  void scalars(int64_t step, const std::vector<std::pair<const char*, double>>& values);
  bool is_in_events(int64_t step, const char* event) const;

  std::unique_ptr<Outputs> outputs_;
  bool has_precision_ = false;  // In metrics.csv.
  int64_t resume_step_;
  std::set<std::string> were_there_;  // Events of that step, from the process before.
};

}  // namespace cohort
