#pragma once
// The live progress of a training, on stderr: one redrawn line on a terminal, plain lines anywhere else. Torch-free; one thread.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace cohort {

/// Where the progress goes and how. The default of each member is what a real stderr gives; tests give their own.
struct ProgressOutput {
  bool is_terminal = false;
  bool colours = false;                         ///< Only looked at on a terminal.
  bool unicode = false;                         ///< Bar of box-drawing characters instead of '#'.
  std::function<void(std::string_view)> write;  ///< Each call is one write(2): a line, or one redraw of the bar.
  std::function<int()> width;                   ///< Columns; asked before each redraw, because windows change their size.
  std::function<double()> clock;                ///< Seconds that never go back.

  /// stderr. Colours unless NO_COLOR is set or TERM is dumb; unicode where LC_ALL, LC_CTYPE or LANG (the first that is set) says UTF-8.
  static ProgressOutput standard_error();
};

/// Text goes out at the first step, then at most ten times a second on a terminal and every 5 seconds elsewhere, and at finish().
class Progress {
 public:
  /// `total_steps`: the number of the last step, 0 where nobody knows it. `first_step`: steps done before this process began (0, or where a
  /// resumed run goes on). A Progress that is not enabled (other ranks, --quiet) writes nothing at all, notes included.
  Progress(int64_t total_steps, int64_t first_step, bool enabled = true);
  Progress(int64_t total_steps, int64_t first_step, ProgressOutput output, bool enabled = true);
  /// Calls finish().
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// After a step. `step`: steps done so far, this one included. The validation error, a fraction, stays on show until the next one.
  void update(int64_t step, double loss, double samples_per_second, std::optional<double> val_error = std::nullopt);
  /// A line above the bar, without a newline at its end.
  void note(const std::string& text);
  /// Shows the last state and leaves the line. Later calls do nothing.
  void finish();

 private:
  void show();
  std::string bar_line(int columns) const;
  std::string plain_line() const;
  std::string time_left() const;

  ProgressOutput output_;
  bool enabled_ = true;
  bool finished_ = false;
  bool drawn_ = false;  ///< A bar stands on the terminal's current line.
  int64_t total_steps_ = 0;
  int64_t step_ = 0;
  int64_t shown_step_ = -1;
  bool changed_ = false;  ///< Something came after the last show().
  double loss_ = 0;
  double samples_per_second_ = 0;
  std::optional<double> val_error_;
  double updated_at_ = 0;  ///< Clock at the last update.
  double shown_at_ = 0;
  double smoothed_step_seconds_ = 0;
  double smoothing_weight_ =
      0;  ///< Sum of the weights in smoothed_step_seconds_: it starts at 0, so the mean is unbiased from the first step.
};

}  // namespace cohort
