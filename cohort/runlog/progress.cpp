// The progress bar. The time left is (steps left) x (smoothed step time), an exponential moving average of the time between updates (so
// evaluations and checkpoints count), divided by the sum of its weights so that early values are unbiased.

#include "cohort/runlog/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr double kSmoothing = 0.03;
constexpr double kRedrawSeconds = 0.1;
constexpr double kPlainSeconds = 5.0;
constexpr int kMinBarColumns = 8, kMaxBarColumns = 40;
constexpr char kBar[] = "\x1b[36m", kDim[] = "\x1b[2m", kStrong[] = "\x1b[1m", kReset[] = "\x1b[0m";

int stderr_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (!value || !*value) continue;
    std::string text = value;
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text.find("utf-8") != std::string::npos || text.find("utf8") != std::string::npos;
  }
  return false;
}

std::string loss_text(double loss) {
  if (!std::isfinite(loss)) return "not finite";
  char out[32];
  std::snprintf(out, sizeof out, std::abs(loss) >= 1e5 || (loss != 0 && std::abs(loss) < 1e-3) ? "%.2e" : "%.4f", loss);
  return out;
}

std::string rate_text(double samples_per_second) {
  if (!std::isfinite(samples_per_second) || samples_per_second < 0 || samples_per_second > 1e15) return "";
  if (samples_per_second < 10) {
    char out[32];
    std::snprintf(out, sizeof out, "%.1f samples/s", samples_per_second);
    return out;
  }
  return with_commas(std::llround(samples_per_second)) + " samples/s";
}

std::string error_text(double fraction) {
  char out[48];
  std::snprintf(out, sizeof out, "val error %.1f %%", 100 * fraction);
  return out;
}

/// A bar of `columns` characters.
std::string draw_bar(double fraction, int columns, const ProgressOutput& output) {
  const int full = std::clamp(static_cast<int>(std::floor(fraction * columns)), 0, columns);
  std::string done, open;
  for (int i = 0; i < full; ++i) done += output.unicode ? "\u2501" : "#";
  for (int i = full; i < columns; ++i) open += output.unicode ? "\u2500" : "-";
  if (!output.colours) return done + open;
  return kBar + done + kReset + kDim + open + kReset;
}

}  // namespace

ProgressOutput ProgressOutput::standard_error() {
  const char* terminal = std::getenv("TERM");
  const bool dumb = !terminal || !*terminal || std::string_view(terminal) == "dumb";
  const char* no_color = std::getenv("NO_COLOR");
  ProgressOutput output;
  output.is_terminal = isatty(STDERR_FILENO) && !dumb;  // A dumb terminal cannot redraw a line.
  output.colours = !(no_color && *no_color);
  output.unicode = locale_is_utf8();
  output.write = write_stderr;
  output.width = stderr_columns;
  output.clock = steady_seconds;
  return output;
}

Progress::Progress(int64_t total_steps, int64_t first_step, bool enabled)
    : Progress(total_steps, first_step, ProgressOutput::standard_error(), enabled) {}

Progress::Progress(int64_t total_steps, int64_t first_step, ProgressOutput output, bool enabled)
    : output_(std::move(output)), enabled_(enabled), total_steps_(total_steps), step_(first_step), updated_at_(output_.clock()) {}

Progress::~Progress() { finish(); }

void Progress::update(int64_t step, double loss, double samples_per_second, std::optional<double> val_error) {
  if (!enabled_ || finished_) return;
  const double now = output_.clock();
  if (step > step_) {
    const double keep = std::pow(1 - kSmoothing, static_cast<double>(step - step_));
    smoothed_step_seconds_ = keep * smoothed_step_seconds_ + (1 - keep) * (now - updated_at_) / static_cast<double>(step - step_);
    smoothing_weight_ = keep * smoothing_weight_ + (1 - keep);
    updated_at_ = now;
  }
  step_ = step;
  loss_ = loss;
  samples_per_second_ = samples_per_second;
  if (val_error) val_error_ = val_error;
  changed_ = true;
  if (shown_step_ < 0 || now - shown_at_ >= (output_.is_terminal ? kRedrawSeconds : kPlainSeconds)) show();
}

void Progress::note(const std::string& text) {
  if (!enabled_) return;
  if (!drawn_) {
    output_.write(text + "\n");
    return;
  }
  output_.write("\r\x1b[K" + text + "\n");
  if (!finished_) show();
}

void Progress::finish() {
  if (!enabled_ || finished_) return;
  if (changed_) show();
  if (drawn_) output_.write("\n");
  drawn_ = false;
  finished_ = true;
}

void Progress::show() {
  if (output_.is_terminal) {
    output_.write("\r" + bar_line(output_.width()) + "\x1b[K");
    drawn_ = true;
  } else {
    output_.write(plain_line() + "\n");
  }
  shown_at_ = output_.clock();
  shown_step_ = step_;
  changed_ = false;
}

std::string Progress::time_left() const {
  if (total_steps_ <= 0 || smoothing_weight_ <= 0) return "";
  const double seconds = std::max<double>(0, static_cast<double>(total_steps_ - step_)) * smoothed_step_seconds_ / smoothing_weight_;
  if (!std::isfinite(seconds) || seconds > 1e8) return "";
  return seconds < 1 ? (step_ >= total_steps_ ? "" : "1 s left") : human_seconds(std::round(seconds)) + " left";
}

std::string Progress::bar_line(int columns) const {
  const bool known = total_steps_ > 0;
  const double fraction = known ? std::clamp(static_cast<double>(step_) / static_cast<double>(total_steps_), 0.0, 1.0) : 0;
  // In display order; a narrow line drops the fields with the highest rank first.
  struct Field {
    std::string text;
    int rank;
  };
  std::vector<Field> fields;
  fields.push_back({with_commas(step_) + (known ? "/" + with_commas(total_steps_) : " steps"), 0});
  fields.push_back({"loss " + loss_text(loss_), 1});
  if (val_error_) fields.push_back({error_text(*val_error_), 3});
  if (const std::string rate = rate_text(samples_per_second_); !rate.empty()) fields.push_back({rate, 4});
  if (const std::string left = time_left(); !left.empty()) fields.push_back({left, 2});

  const int usable = std::max(columns - 1, 1);  // The last column stays free: some terminals wrap as soon as it is filled.
  const auto text_columns = [&] {
    int sum = 0;
    for (const Field& field : fields) sum += static_cast<int>(field.text.size()) + 2;
    return sum - 2;
  };
  const auto by_rank = [](const Field& a, const Field& b) { return a.rank < b.rank; };
  while (fields.size() > 1 && text_columns() > usable) fields.erase(std::max_element(fields.begin(), fields.end(), by_rank));

  std::string line;
  constexpr int kFrameColumns = 8;  // "100 % " before the bar, two spaces behind it.
  const int bar_columns = std::min(kMaxBarColumns, usable - text_columns() - kFrameColumns);
  if (known && bar_columns >= kMinBarColumns) {
    char percent[16];
    std::snprintf(percent, sizeof percent, "%3d %%", static_cast<int>(100 * fraction));
    line =
        (output_.colours ? concat(kStrong, percent, kReset) : std::string(percent)) + " " + draw_bar(fraction, bar_columns, output_) + "  ";
  }
  for (size_t i = 0; i < fields.size(); ++i) line += (i ? "  " : "") + fields[i].text.substr(0, static_cast<size_t>(usable));
  return line;
}

std::string Progress::plain_line() const {
  std::string line = "step " + with_commas(step_);
  if (total_steps_ > 0) {
    line += "/" + with_commas(total_steps_);
    line += concat(" (", static_cast<int>(100.0 * static_cast<double>(step_) / static_cast<double>(total_steps_)), " %)");
  }
  line += ", loss " + loss_text(loss_);
  if (val_error_) line += ", " + error_text(*val_error_);
  if (const std::string rate = rate_text(samples_per_second_); !rate.empty()) line += ", " + rate;
  if (const std::string left = time_left(); !left.empty()) line += ", " + left;
  return line;
}

}  // namespace cohort
