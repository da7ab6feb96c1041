// Time left = time so far x work left / work done. What is left is a guess that gets better: trials still to decide x the share of its
// budget that a trial used so far; points that diverge draw others.

#include "cohort/trials/study_progress.h"

#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {
constexpr double kRedrawSeconds = 0.1, kPlainSeconds = 10;
constexpr double kMinSecondsForForecast = 1;  ///< Before that the time left would be noise.
constexpr int kMaxBarColumns = 30;
}  // namespace

StudyProgress::StudyProgress(ProgressOutput output, bool enabled)
    : output_(std::move(output)), enabled_(enabled), began_at_(output_.clock()) {}

StudyProgress::~StudyProgress() { finish(); }

std::string StudyProgress::line() const {
  const int64_t all = state_.trials_done + state_.trials_left;
  std::string text = concat("trial ", with_commas(state_.trials_done), "/", with_commas(all), ", ", state_.running, " running");
  const double elapsed = output_.clock() - began_at_;
  if (elapsed >= kMinSecondsForForecast && state_.work_done > 0 && state_.work_left > 0)
    text += concat(", ", human_seconds(std::max(1.0, std::round(elapsed * state_.work_left / state_.work_done))), " left");
  return text;
}

void StudyProgress::show() {
  std::string text = line();
  if (output_.is_terminal) {
    const int64_t all = std::max<int64_t>(1, state_.trials_done + state_.trials_left);
    const int usable = std::max(1, output_.width() - 1);
    const int columns = std::min(kMaxBarColumns, usable - static_cast<int>(text.size()) - 2);
    if (columns >= 5) {
      const auto full = static_cast<size_t>(columns * state_.trials_done / all);
      text = std::string(full, '#') + std::string(static_cast<size_t>(columns) - full, '-') + "  " + text;
    }
    output_.write("\r" + text.substr(0, static_cast<size_t>(usable)) + "\x1b[K");
    drawn_ = true;
  } else {
    output_.write(text + "\n");
  }
  shown_at_ = output_.clock();
}

void StudyProgress::update(const State& state) {
  state_ = state;
  if (!enabled_ || finished_) return;
  if (shown_at_ < 0 || output_.clock() - shown_at_ >= (output_.is_terminal ? kRedrawSeconds : kPlainSeconds)) show();
}

void StudyProgress::note(const std::string& text, LogLevel level) {
  if (drawn_ && !finished_) output_.write("\r\x1b[K");
  log_line(level, text);
  if (drawn_ && !finished_) show();
}

void StudyProgress::finish() {
  if (finished_) return;
  if (enabled_ && shown_at_ >= 0) show();
  if (drawn_) output_.write("\n");
  finished_ = true;
}

}  // namespace cohort
