#pragma once
// Live progress of a training on stderr: one redrawn line on a terminal, plain lines elsewhere. Torch-free; one thread.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace cohort {

/// Where and how progress is written; tests inject their own functions.
struct ProgressOutput {
  bool is_terminal = false;
  bool colours = false;                         ///< Only on a terminal.
  bool unicode = false;                         ///< Bar of box-drawing characters instead of '#'.
  std::function<void(std::string_view)> write;  ///< Each call is one write(2): a line, or one redraw of the bar.
  std::function<int()> width;                   ///< Columns; queried before each redraw.
  std::function<double()> clock;                ///< Monotonic seconds.

  /// stderr with colours unless NO_COLOR is set or TERM is dumb, and unicode where LC_ALL, LC_CTYPE or LANG (the first set) is UTF-8.
  static ProgressOutput standard_error();
};

/// Writes at the first step, then at most ten times a second on a terminal and every 5 seconds elsewhere, and at finish().
class Progress {
 public:
  /// `total_steps`: the number of the last step, 0 if unknown. `first_step`: steps done before this process began. A disabled Progress
  /// (other ranks, --quiet) writes nothing.
  Progress(int64_t total_steps, int64_t first_step, bool enabled = true);
  Progress(int64_t total_steps, int64_t first_step, ProgressOutput output, bool enabled = true);
  /// Calls finish().
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `step`: steps done so far, including this one. The validation error, a fraction, is shown until the next one.
  void update(int64_t step, double loss, double samples_per_second, std::optional<double> val_error = std::nullopt);
  /// Writes a line above the bar. `text` has no newline at its end.
  void note(const std::string& text);
  /// Shows the last state and ends the line. Later calls do nothing.
  void finish();

 private:
  void show();
  std::string bar_line(int columns) const;
  std::string plain_line() const;
  std::string time_left() const;

  ProgressOutput output_;
  bool enabled_ = true;
  bool finished_ = false;
  bool drawn_ = false;  ///< The terminal's current line holds a bar.
  int64_t total_steps_ = 0;
  int64_t step_ = 0;
  int64_t shown_step_ = -1;
  bool changed_ = false;  ///< Updated since the last show().
  double loss_ = 0;
  double samples_per_second_ = 0;
  std::optional<double> val_error_;
  double updated_at_ = 0;  ///< Clock at the last update.
  double shown_at_ = 0;
  double smoothed_step_seconds_ = 0;
  double smoothing_weight_ = 0;  ///< Sum of the weights in smoothed_step_seconds_.
};

}  // namespace cohort
