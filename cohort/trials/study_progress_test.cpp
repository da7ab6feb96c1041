#include "cohort/trials/study_progress.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace cohort;

namespace {

struct Screen {
  double now = 0;
  std::vector<std::string> writes;
  ProgressOutput output(bool is_terminal, int columns = 100) {
    ProgressOutput made;
    made.is_terminal = is_terminal;
    made.write = [this](std::string_view text) { writes.emplace_back(text); };
    made.width = [columns] { return columns; };
    made.clock = [this] { return now; };
    return made;
  }
};

}  // namespace

TEST_CASE("time left is the time so far, times work left over work done") {
  Screen screen;
  StudyProgress progress(screen.output(false), true);
  progress.update({.trials_done = 0, .trials_left = 12, .running = 2, .work_done = 0, .work_left = 90});
  screen.now = 30;
  progress.update({.trials_done = 3, .trials_left = 9, .running = 2, .work_done = 30, .work_left = 60});
  REQUIRE(screen.writes.size() == 2);
  CHECK(screen.writes[0] == "trial 0/12, 2 running\n");
  CHECK(screen.writes[1] == "trial 3/12, 2 running, 1 min 0 s left\n");
}

TEST_CASE("plain lines every ten seconds, redraws ten times a second") {
  for (const bool is_terminal : {false, true}) {
    Screen screen;
    StudyProgress progress(screen.output(is_terminal), true);
    for (int i = 0; i <= 2000; ++i) {
      screen.now = i * 0.01;
      progress.update({.trials_done = 1, .trials_left = 1});
    }
    CHECK(screen.writes.size() <= (is_terminal ? 202 : 3));
    CHECK(screen.writes.size() >= (is_terminal ? 100 : 2));
  }
}

TEST_CASE("a line fits its terminal, and a quiet one writes nothing") {
  for (const int columns : {1, 10, 40, 200}) {
    Screen screen;
    {
      StudyProgress progress(screen.output(true, columns), true);
      progress.update({.trials_done = 5, .trials_left = 5, .running = 1, .work_done = 1, .work_left = 1});
    }
    for (const std::string& text : screen.writes)
      CHECK(static_cast<int>(text.size()) <= columns + 4);  // "\r" and the erasing of the rest take no column.
    CHECK(screen.writes.back() == "\n");
  }
  Screen screen;
  {
    StudyProgress progress(screen.output(true), false);
    progress.update({.trials_done = 5, .trials_left = 5});
  }
  CHECK(screen.writes.empty());
}
