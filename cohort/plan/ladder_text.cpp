#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/plan/ladder.h"

namespace cohort {
namespace {

std::string padded(const std::string& text, size_t width, bool right) {
  const std::string space(width > text.size() ? width - text.size() : 0, ' ');
  return right ? space + text : text + space;
}

}  // namespace

std::string ladder_text(const Ladder& ladder) {
  std::string out = ladder.constraint.empty() ? "" : ladder.constraint + "\n\n";
  const bool has_goal =
      std::any_of(ladder.rungs.begin(), ladder.rungs.end(), [](const Rung& rung) { return rung.seconds_to_goal.has_value(); });
  const auto row = [&](const std::string& name, const std::string& memory, const std::string& step, const std::string& goal,
                       const std::string& fits, const std::string& options) {
    out += concat(padded(name, 27, false), padded(memory, 11, true), padded(step, 11, true), has_goal ? padded(goal, 11, true) : "", "  ",
                  padded(fits, 5, false), options, "\n");
  };
  row("what to do", "a rank", "a step", "to goal", "fits", "options");
  for (const Rung& rung : ladder.rungs) {
    const StepForecast& forecast = rung.plan->forecast;
    row(rung.name, human_bytes(forecast.peak_memory_bytes()), human_seconds(forecast.step_seconds),
        rung.seconds_to_goal ? human_seconds(*rung.seconds_to_goal) : "", rung.fits ? "yes" : "no",
        rung.note.empty()      ? rung.options
        : rung.options.empty() ? concat("(", rung.note, ")")
                               : concat(rung.options, "  (", rung.note, ")"));
  }
  if (!ladder.notes.empty()) out += "\n";
  for (const std::string& note : ladder.notes) out += concat("- ", note, "\n");
  if (ladder.is_stopped) out += "\nStopped: ways out that would come below were not looked at.\n";
  return out;
}

Json to_json(const Ladder& ladder) {
  Json rungs = Json::array();
  for (const Rung& rung : ladder.rungs)
    rungs.push_back({{"name", rung.name},
                     {"options", rung.options},
                     {"fits", rung.fits},
                     {"predicted_peak_memory_bytes", rung.plan->forecast.peak_memory_bytes()},
                     {"predicted_step_seconds", rung.plan->forecast.step_seconds},
                     {"seconds_to_goal", rung.seconds_to_goal ? Json(*rung.seconds_to_goal) : Json(nullptr)},
                     {"num_workers", rung.plan->candidate.layout.num_ranks()},
                     {"global_batch", rung.plan->global_batch},
                     {"note", rung.note}});
  return {{"event", "ladder"},
          {"constraint", ladder.constraint},
          {"rungs", std::move(rungs)},
          {"notes", ladder.notes},
          {"complete", !ladder.is_stopped}};
}

}  // namespace cohort
