// The timeline as trace events (the format of chrome://tracing, which Perfetto opens): one thread a rank, times in microseconds where those
// of the timeline are seconds.
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/schedule/simulate.h"

namespace cohort {

const char* trace_category(const Action& action) {
  static const char* const kCategories[] = {"forward", "backward", "backward_input", "backward_weight",
                                            "send",    "receive",  "send",           "receive"};
  return kCategories[static_cast<size_t>(action.kind)];
}

Json timeline_trace(const Timeline& timeline) {
  constexpr double kMicroseconds = 1e6;
  Json events = Json::array();
  events.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", 0}, {"args", {{"name", "pipeline schedule (simulated)"}}}});
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    events.push_back({{"name", "thread_name"}, {"ph", "M"}, {"pid", 0}, {"tid", rank}, {"args", {{"name", concat("rank ", rank)}}}});
    for (const auto& [action, start, end] : timeline.ranks[rank])
      events.push_back({{"name", action_text(action)},
                        {"cat", trace_category(action)},
                        {"ph", "X"},
                        {"ts", start * kMicroseconds},
                        {"dur", (end - start) * kMicroseconds},
                        {"pid", 0},
                        {"tid", rank},
                        {"args", {{"stage", action.stage}, {"micro_batch", action.micro_batch}}}});
  }
  return {{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}};
}

}  // namespace cohort
