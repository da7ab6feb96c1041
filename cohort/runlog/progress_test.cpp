#include "cohort/runlog/progress.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>
#include <vector>

namespace cohort {
namespace {

/// A stderr with a clock that the test moves.
struct Screen {
  std::vector<std::string> writes;
  double now = 100;
  int columns = 100;

  ProgressOutput output(bool is_terminal) {
    ProgressOutput out;
    out.is_terminal = is_terminal;
    out.write = [this](std::string_view text) { writes.emplace_back(text); };
    out.width = [this] { return columns; };
    out.clock = [this] { return now; };
    return out;
  }
};

/// Columns that a redraw covers: without the escape sequences, a UTF-8 character counts once.
size_t visible_columns(const std::string& text) {
  size_t count = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      while (i < text.size() && !std::isalpha(static_cast<unsigned char>(text[i]))) ++i;
    } else if (text[i] != '\r' && text[i] != '\n' && (static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) {
      ++count;
    }
  }
  return count;
}

TEST_CASE("progress: plain lines are the first, one each 5 seconds, and the last") {
  Screen screen;
  {
    Progress progress(1000, 0, screen.output(false));
    for (int step = 1; step <= 1000; ++step) {
      screen.now += 0.0125;  // 12.5 s in all.
      progress.update(step, 1.0 / step, 10240);
    }
  }
  REQUIRE(screen.writes.size() == 4);
  CHECK(screen.writes[0] == "step 1/1,000 (0 %), loss 1.0000, 10,240 samples/s, 12.0 s left\n");
  CHECK(screen.writes[1].starts_with("step 401/1,000 (40 %), loss 0.0025, "));
  CHECK(screen.writes[3] == "step 1,000/1,000 (100 %), loss 0.0010, 10,240 samples/s\n");
  for (const std::string& line : screen.writes) CHECK(line.find('\x1b') == std::string::npos);
}

TEST_CASE("progress: nothing is written twice, finish may come twice, and without an update there is no line") {
  Screen screen;
  Progress progress(1, 0, screen.output(false));
  progress.update(1, 2.5, 10);
  progress.finish();
  progress.finish();
  progress.update(2, 2.5, 10);
  CHECK(screen.writes.size() == 1);
  Screen silent;
  Progress(10, 0, silent.output(true)).finish();
  CHECK(silent.writes.empty());
}

TEST_CASE("progress: a terminal sees at most ten redraws a second, each within its width, and a newline at the end") {
  for (const bool pretty : {false, true}) {
    for (const int columns : {1, 5, 12, 20, 40, 60, 80, 200}) {
      Screen screen;
      screen.columns = columns;
      ProgressOutput output = screen.output(true);
      output.colours = output.unicode = pretty;
      Progress progress(50000, 0, output);
      for (int step = 1; step <= 3000; ++step) {
        screen.now += 0.001;  // 3 s in all.
        progress.update(step, 0.5, 54321.0, 0.113);
      }
      progress.finish();
      CHECK(screen.writes.size() <= 33);
      CHECK(screen.writes.size() >= 25);
      CHECK(screen.writes.back() == "\n");
      for (const std::string& redraw : screen.writes) CHECK(visible_columns(redraw) <= static_cast<size_t>(std::max(1, columns - 1)));
    }
  }
}

TEST_CASE("progress: the width is asked again, and a narrow line drops the speed first and the step last") {
  Screen screen;
  Progress progress(1720, 0, screen.output(true));
  auto redraw = [&, step = 0](int columns) mutable {
    screen.columns = columns;
    screen.now += 1;
    progress.update(++step, 0.25, 5000, 0.1);
    return screen.writes.back();
  };
  CHECK(redraw(120).find("  0 % ") != std::string::npos);
  CHECK(redraw(120).find("val error 10.0 %  5,000 samples/s  28 min 38 s left") != std::string::npos);
  const std::string middle = redraw(50);
  CHECK(middle.find("samples/s") == std::string::npos);
  CHECK(middle.find("left") != std::string::npos);
  const std::string narrow = redraw(12);
  CHECK(narrow.find("4/1,720") != std::string::npos);
  CHECK(narrow.find("loss") == std::string::npos);
}

TEST_CASE("progress: the time left follows a change of speed, and a resumed run counts only its own steps") {
  Screen screen;
  Progress progress(2000, 1000, screen.output(false));
  for (int step = 1001; step <= 1100; ++step) screen.now += 0.1, progress.update(step, 1, 1);
  for (int step = 1101; step <= 1500; ++step) screen.now += 0.5, progress.update(step, 1, 1);
  CHECK(screen.writes.front().find("99.9 s") == std::string::npos);
  CHECK(screen.writes.front().find("1 min 40 s left") != std::string::npos);
  progress.finish();
  // 500 steps at 0.5 s, up to the little that the fast steps still weigh.
  const std::string& last = screen.writes.back();
  CHECK((last.find("4 min 9 s left") != std::string::npos || last.find("4 min 10 s left") != std::string::npos));
}

TEST_CASE("progress: a note clears the bar, prints a line and draws the bar again") {
  Screen screen;
  Progress progress(10, 0, screen.output(true));
  progress.note("before");
  progress.update(1, 1, 1);
  progress.note("checkpoint at step 1");
  REQUIRE(screen.writes.size() == 4);
  CHECK(screen.writes[0] == "before\n");
  CHECK(screen.writes[2] == "\r\x1b[Kcheckpoint at step 1\n");
  CHECK(screen.writes[3].starts_with("\r"));
  CHECK(screen.writes[3].find("1/10") != std::string::npos);
}

TEST_CASE("progress: numbers that are not finite, and an unknown number of steps") {
  Screen screen;
  Progress progress(0, 0, screen.output(false));
  screen.now += 1;
  progress.update(1, std::nan(""), INFINITY);
  CHECK(screen.writes.at(0) == "step 1, loss not finite\n");
}

TEST_CASE("progress: what is not enabled writes nothing") {
  for (const bool is_terminal : {false, true}) {
    Screen screen;
    Progress progress(10, 0, screen.output(is_terminal), false);
    progress.update(1, 1, 1);
    progress.note("not seen");
    progress.finish();
    CHECK(screen.writes.empty());
  }
}

}  // namespace
}  // namespace cohort
