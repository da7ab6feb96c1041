// The forecast beside the measurement, two bars each: the time of a step, what each rank does in it, and its memory. Bars of one kind share
// a scale. What a rank does is computing, waiting (for gradients, weights and other ranks) and the update: the forecast's exchange that
// nothing hides and its idle time are what a rank then waits for.

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/text/text.h"
#include "cohort/report/draw/chart.h"
#include "cohort/report/draw/format.h"
#include "cohort/report/sections.h"

namespace cohort::report {
namespace {

struct Bar {
  std::string name;
  std::vector<Part> parts;
  std::string value;  ///< Behind it.
};

double length(const Bar& bar) {
  double sum = 0;
  for (const Part& part : bar.parts) sum += std::isfinite(part.size) ? part.size : 0;
  return sum;
}

/// A row a bar: name, bar, value.
std::string bars(const std::vector<Bar>& list, const std::string& css_class) {
  double longest = 0;
  for (const Bar& bar : list) longest = std::max(longest, length(bar));
  if (!(longest > 0)) return "";
  std::string out;
  for (const Bar& bar : list)
    out += "<span>" + escape_html(bar.name) + "</span>" + stacked_bar(bar.parts, longest, bar.name + ": " + bar.value, css_class) +
           "<span class=\"number\">" + escape_html(bar.value) + "</span>\n";
  return "<div class=\"workers\">" + out + "</div>\n";
}

const char kForecastColour[] = "c-other", kMeasuredColour[] = "c-compute";

std::string step_bars(const ForecastRecord& forecast, const Summary& summary) {
  std::string range;
  if (forecast.has_interval())
    range = " (" + milliseconds_text(forecast.interval[0]) + " to " + milliseconds_text(forecast.interval[1]) + ")";
  std::vector<Bar> list = {{"a step, forecast",
                            {{kForecastColour, forecast.predicted_step_seconds}},
                            milliseconds_text(forecast.predicted_step_seconds) + range}};
  if (std::isfinite(summary.step_seconds))
    list.push_back({"a step, measured", {{kMeasuredColour, summary.step_seconds}}, milliseconds_text(summary.step_seconds)});
  return bars(list, "stack");
}

Bar parts_bar(const std::string& name, double compute, double wait, double update) {
  std::string words = milliseconds_text(compute) + " + " + milliseconds_text(wait) + " + " + milliseconds_text(update);
  return {name, {{"c-compute", compute}, {"c-exchange", wait}, {"c-optimizer", update}}, std::move(words)};
}

const RankRecord* rank_of(const RunRecord& run, int64_t number) {
  const auto found = std::find_if(run.ranks.begin(), run.ranks.end(), [&](const RankRecord& rank) { return rank.rank == number; });
  return found == run.ranks.end() ? nullptr : &*found;
}

std::string key(const char* colour, const std::string& word) {
  return element("span", {{"class", std::string("key ") + colour}}, escape_html(word));
}

std::string rank_bars(const RunRecord& run, const Summary& summary) {
  const auto steps = static_cast<double>(summary.steps_of_last_process);
  std::vector<Bar> list;
  for (const ForecastRecord::Worker& worker : run.forecast->workers)
    for (const int64_t number : worker.ranks) {
      const std::string name = "rank " + std::to_string(number);
      list.push_back(parts_bar(name + ", forecast", worker.forward_seconds + worker.backward_seconds,
                               worker.exposed_exchange_seconds + worker.idle_seconds, worker.update_seconds));
      const RankRecord* const rank = rank_of(run, number);
      if (rank && steps > 0)
        list.push_back(
            parts_bar(name + ", measured", rank->compute_seconds / steps, rank->exchange_seconds / steps, rank->optimizer_seconds / steps));
    }
  const std::string drawn = bars(list, "stack");
  if (drawn.empty()) return "";
  return "<p class=\"keys\">" + key("c-compute", "computing") + " + " + key("c-exchange", "waiting for others and for exchanges") + " + " +
         key("c-optimizer", "update") + "</p>\n" + drawn;
}

std::string memory_bars(const RunRecord& run) {
  std::vector<Bar> list;
  for (const ForecastRecord::Worker& worker : run.forecast->workers) {
    if (!worker.memory_bytes || !worker.memory_bytes->total) continue;
    for (const int64_t number : worker.ranks) {
      const std::string name = "rank " + std::to_string(number);
      list.push_back({name + ", forecast",
                      {{kForecastColour, static_cast<double>(*worker.memory_bytes->total)}},
                      bytes_text(worker.memory_bytes->total)});
      const RankRecord* const rank = rank_of(run, number);
      if (!rank) continue;
      const std::optional<int64_t> peak = rank->peak_tensor_bytes ? rank->peak_tensor_bytes : rank->peak_memory_bytes;
      if (peak) list.push_back({name + ", measured", {{kMeasuredColour, static_cast<double>(*peak)}}, bytes_text(peak)});
    }
  }
  const std::string drawn = bars(list, "stack");
  return drawn.empty() ? "" : "<h3>Most memory of a rank</h3>\n" + drawn;
}

}  // namespace

std::string forecast_section(const RunRecord& run, const Summary& summary) {
  if (!run.forecast || !(run.forecast->predicted_step_seconds > 0)) return "";
  const ForecastRecord& forecast = *run.forecast;
  std::string intro = "What was expected before the run, from " + forecast.source + ", beside what was measured.";
  if (forecast.has_interval()) {
    const bool is_default = forecast.interval_from == "default" || forecast.interval_from.empty();
    intro += " In 90 of 100 runs the step should be inside the interval (" +
             (is_default ? std::string("the default one") : "from " + forecast.interval_from) + ")";
    const bool is_inside = summary.step_seconds >= forecast.interval[0] && summary.step_seconds <= forecast.interval[1];
    intro += !std::isfinite(summary.step_seconds) ? "." : is_inside ? "; here it was." : "; here it was not.";
  }
  return section("forecast", "Forecast and measurement", intro,
                 step_bars(forecast, summary) + "<h3>A step of each rank</h3>\n" + rank_bars(run, summary) + memory_bars(run));
}

}  // namespace cohort::report
