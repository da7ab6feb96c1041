#pragma once
// The progress of a study on stderr: trials done, share of the work, time left. One line that is redrawn on a terminal, plain lines
// anywhere else. Torch-free; one thread.

#include <cstdint>
#include <string>

#include "cohort/base/text/log.h"
#include "cohort/runlog/progress.h"

namespace cohort {

class StudyProgress {
 public:
  /// How far the study has come. Work is in any unit, as long as it is one.
  struct State {
    int64_t trials_done = 0, trials_left = 0;
    int64_t running = 0;
    double work_done = 0;  ///< Since this process began.
    double work_left = 0;
  };
  explicit StudyProgress(bool enabled) : StudyProgress(ProgressOutput::standard_error(), enabled) {}
  StudyProgress(ProgressOutput output, bool enabled);
  ~StudyProgress();
  StudyProgress(const StudyProgress&) = delete;
  StudyProgress& operator=(const StudyProgress&) = delete;

  /// At most ten redraws a second on a terminal, a line every 10 seconds elsewhere.
  void update(const State& state);
  /// A line above the bar, also where the progress itself is not shown.
  void note(const std::string& text, LogLevel level = LogLevel::kInfo);
  /// Leaves the line. Later calls do nothing.
  void finish();

 private:
  std::string line() const;
  void show();

  ProgressOutput output_;
  bool enabled_, drawn_ = false, finished_ = false;
  double began_at_ = 0, shown_at_ = -1;
  State state_;
};

}  // namespace cohort
