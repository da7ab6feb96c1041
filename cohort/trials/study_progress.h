#pragma once
// The output of a running study: its progress on stderr, and its results on stdout as JSON lines or as a table. Torch-free.

#include <cstdint>
#include <string>

#include "cohort/base/text/json_fwd.h"
#include "cohort/base/text/log.h"
#include "cohort/runlog/progress.h"
#include "cohort/study/spec/data.h"
#include "cohort/study/spec/spec.h"

namespace cohort {

/// Shows trials done, share of the work, and time left: one line that is redrawn on a terminal, plain lines elsewhere. Used by one thread.
class StudyProgress {
 public:
  /// The state of the study. Work is in any consistent unit.
  struct State {
    int64_t trials_done = 0, trials_left = 0;
    int64_t running = 0;
    double work_done = 0;  ///< Since this process started.
    double work_left = 0;
  };
  explicit StudyProgress(bool enabled) : StudyProgress(ProgressOutput::standard_error(), enabled) {}
  StudyProgress(ProgressOutput output, bool enabled);
  ~StudyProgress();
  StudyProgress(const StudyProgress&) = delete;
  StudyProgress& operator=(const StudyProgress&) = delete;

  /// At most ten redraws a second on a terminal, a line every 10 seconds elsewhere.
  void update(const State& state);
  /// Logs a line above the bar, also where the progress itself is not shown.
  void note(const std::string& text, LogLevel level = LogLevel::kInfo);
  /// Ends the line. Later calls do nothing.
  void finish();

 private:
  std::string line() const;
  void show();

  ProgressOutput output_;
  bool enabled_, drawn_ = false, finished_ = false;
  double began_at_ = 0, shown_at_ = -1;
  State state_;
};

// Results of `cohort study run`.

/// {"event":"trial", ...}
std::string trial_line(int64_t batch_size, const study::Trial& trial);
/// Prints {"event":"steps_to_result", ...} for each batch size of the spec at its first goal, then {"event":"work", ...}.
void print_steps_lines(const study::StudyData& data, const study::StudySpec& spec);
/// The same as a table, with the next command.
void print_steps_table(const study::StudyData& data, const study::StudySpec& spec, const std::string& folder);
/// The steps that were trained, and those that the same trials would have taken with their whole budgets; both also in samples.
Json work_saved(const study::StudyData& data, const study::StudySpec& spec);
std::string halving_warning();

}  // namespace cohort
