// Forecast and measurement of a run, and the parts of the model on each rank.
//
// Forecast: bars of forecast and measurement, of the time of a step, of each rank's time in it, and of its memory. Bars of one kind share a
// scale. A rank's time is computing, waiting (for gradients, weights and other ranks) and the update; the forecast's waiting is its exposed
// exchange plus its idle time.
//
// Pipeline: the forecast (the schedule, simulated with measured times of the layers) and the measurement, the schedule as a chart, and the
// stages.
//
// Parts: one row per rank with its mesh coordinates, stages and layers, its waiting time, and its memory: weights, gradients and optimizer
// state by the layout's formula, and the allocator's peak where there was a limit.

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/text/text.h"
#include "cohort/report/draw/chart.h"
#include "cohort/report/draw/format.h"
#include "cohort/report/draw/plain_svg.h"
#include "cohort/report/sections.h"

namespace cohort::report {
namespace {

const char kForecastColour[] = "c-other", kMeasuredColour[] = "c-compute";

std::string step_bars(const ForecastRecord& forecast, const Summary& summary) {
  std::string range;
  if (forecast.has_interval())
    range = " (" + milliseconds_text(forecast.interval[0]) + " to " + milliseconds_text(forecast.interval[1]) + ")";
  std::vector<BarRow> list = {{"a step, forecast",
                               {{kForecastColour, forecast.predicted_step_seconds}},
                               milliseconds_text(forecast.predicted_step_seconds) + range}};
  if (std::isfinite(summary.step_seconds))
    list.push_back({"a step, measured", {{kMeasuredColour, summary.step_seconds}}, milliseconds_text(summary.step_seconds)});
  return bar_rows(list);
}

BarRow parts_bar(const std::string& name, double compute, double wait, double update) {
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
  std::vector<BarRow> list;
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
  const std::string drawn = bar_rows(list);
  if (drawn.empty()) return "";
  return "<p class=\"keys\">" + key("c-compute", "computing") + " + " + key("c-exchange", "waiting for others and for exchanges") + " + " +
         key("c-optimizer", "update") + "</p>\n" + drawn;
}

std::string memory_bars(const RunRecord& run) {
  std::vector<BarRow> list;
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
  const std::string drawn = bar_rows(list);
  return drawn.empty() ? "" : "<h3>Most memory of a rank</h3>\n" + drawn;
}

/// Waiting for other ranks / (waiting + computing), over all ranks.
double measured_idle(const RunRecord& run) {
  double waited = 0, busy = 0;
  for (const RankRecord& rank : run.ranks) {
    waited += rank.exchange_seconds;
    busy += rank.compute_seconds;
  }
  return waited + busy > 0 ? waited / (waited + busy) : kUnknown;
}

/// Rank 0's time of a step without data and update, as the forecast has it.
double measured_pass(const RunRecord& run, const Summary& summary) {
  if (run.ranks.empty() || summary.steps_of_last_process <= 0) return kUnknown;
  const RankRecord& first = run.ranks.front();
  return (first.compute_seconds + first.exchange_seconds) / static_cast<double>(summary.steps_of_last_process);
}

/// The forecast of forwards and backwards. A forecast of the whole step includes exchange and update, so its parts are used; without one,
/// that of all micro-steps at the end of the run, and before the end that of one.
double forecast_pass(const RunRecord& run, const Summary& summary) {
  if (run.forecast && !run.forecast->workers.empty()) {
    const ForecastRecord::Worker& first = run.forecast->workers.front();
    return first.forward_seconds + first.backward_seconds + first.idle_seconds;
  }
  return std::isfinite(summary.predicted_step_seconds) ? summary.predicted_step_seconds : run.pipeline->predicted_step_seconds;
}

std::string comparison(const RunRecord& run, const Summary& summary) {
  const PipelineRecord& pipeline = *run.pipeline;
  const double forecast = forecast_pass(run, summary);
  Table list;
  list.columns = {{"", false}, {"forecast", true}, {"measured", true}};
  list.rows.push_back({"forwards and backwards of a step", escape_html(milliseconds_text(forecast)),
                       escape_html(milliseconds_text(measured_pass(run, summary)))});
  list.rows.push_back({"idle", escape_html(percent_text(pipeline.predicted_bubble)), escape_html(percent_text(measured_idle(run)))});
  return table(list, "Forecast and measurement");
}

std::string stage_table(const PipelineRecord& pipeline) {
  Table list;
  list.columns = {{"stage", false}, {"worker", true}, {"forward", true}, {"backward, inputs", true}, {"backward, weights", true},
                  {"layers", false}};
  for (size_t stage = 0; stage < pipeline.stages.size(); ++stage) {
    const PipelineRecord::Stage& its = pipeline.stages[stage];
    list.rows.push_back({std::to_string(stage), escape_html(count_text(its.worker)), escape_html(milliseconds_text(its.forward_seconds)),
                         escape_html(milliseconds_text(its.backward_input_seconds)),
                         escape_html(milliseconds_text(its.backward_weight_seconds)), layer_names(its.layers)});
  }
  return table(list, "Stages");
}

struct Column {
  Table::Column head;
  std::function<std::string(const RankRecord&)> cell;  ///< Markup; "" where the rank has no value.
};

Column part_column(const char* heading, bool is_number, std::function<std::string(const PartRecord&)> cell) {
  return {{heading, is_number}, [cell = std::move(cell)](const RankRecord& rank) { return rank.part ? cell(*rank.part) : std::string(); }};
}

Column bytes_column(const char* heading, std::optional<int64_t> RankRecord::* bytes) {
  return {{heading, true}, [bytes](const RankRecord& rank) { return rank.*bytes ? escape_html(bytes_text(rank.*bytes)) : std::string(); }};
}

std::string stages_text(const PartRecord& part) {
  std::vector<std::string> list;
  for (const int64_t stage : part.stages) list.push_back(std::to_string(stage));
  return join(list, ", ");
}

std::string peak_text(const RankRecord& rank) {
  if (!rank.peak_tensor_bytes) return "";
  std::string peak = escape_html(bytes_text(rank.peak_tensor_bytes));
  if (!rank.memory_limit_bytes || *rank.memory_limit_bytes == 0) return peak;
  const double share = static_cast<double>(*rank.peak_tensor_bytes) / static_cast<double>(*rank.memory_limit_bytes);
  return peak + element("small", {}, escape_html(percent_text(share, 0) + " of " + bytes_text(rank.memory_limit_bytes)));
}

std::vector<Column> all_columns(int64_t num_steps) {
  const auto waited = [num_steps](const PartRecord& part) {
    const bool is_known = std::isfinite(part.waited_seconds) && num_steps > 0;
    return is_known ? escape_html(milliseconds_text(part.waited_seconds / static_cast<double>(num_steps))) : std::string();
  };
  const auto micro_batches = [](const PartRecord& part) {
    return part.most_kept_micro_batches ? escape_html(count_text(part.most_kept_micro_batches)) : std::string();
  };
  return {{{"rank", false}, [](const RankRecord& rank) { return std::to_string(rank.rank); }},
          part_column("data", false, [](const PartRecord& part) { return escape_html(part.data); }),
          part_column("pipe", false, [](const PartRecord& part) { return escape_html(part.pipe); }),
          part_column("tensor", false, [](const PartRecord& part) { return escape_html(part.tensor); }),
          part_column("stages", false, stages_text),
          part_column("waited", true, waited),
          part_column("kept micro-batches", true, micro_batches),
          bytes_column("weights", &RankRecord::weight_bytes),
          bytes_column("gradients", &RankRecord::gradient_bytes),
          bytes_column("optimizer", &RankRecord::optimizer_bytes),
          {{"peak of tensors", true}, peak_text},
          part_column("layers", false, [](const PartRecord& part) { return layer_names(part.layers); })};
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

std::string pipeline_section(const RunRecord& run, const Summary& summary) {
  if (!run.pipeline || run.pipeline->stages.empty()) return "";
  const PipelineRecord& pipeline = *run.pipeline;
  std::string intro = "Schedule " + pipeline.schedule;
  if (pipeline.micro_batches)
    intro += " with " + count_text(pipeline.micro_batches) + (*pipeline.micro_batches == 1 ? " micro-batch" : " micro-batches");
  intro +=
      ". The forecast simulates it with each layer's time, measured alone before the run; idle is waiting for other ranks. "
      "Times of stages are those of one micro-batch.";
  std::string chart;
  if (is_plain_svg(pipeline.chart_svg)) chart = scroll_box("The schedule, simulated", pipeline.chart_svg, "scroll timeline") + "\n";
  return section("pipeline", "Pipeline", intro, comparison(run, summary) + chart + stage_table(pipeline));
}

std::string layer_names(const std::vector<std::string>& names) {
  return names.empty() ? "" : element("span", {{"class", "names"}}, escape_html(join(names, ", ")));
}

std::string parts_section(const RunRecord& run, const Summary& summary) {
  bool divided = false, counted = false;
  for (const RankRecord& rank : run.ranks) {
    divided = divided || rank.part;
    counted = counted || rank.peak_tensor_bytes;
  }
  if (!divided && !counted) return "";
  Table list;
  list.rows.resize(run.ranks.size());
  for (const Column& column : all_columns(summary.steps_of_last_process)) {
    std::vector<std::string> cells;
    bool is_empty = true;
    for (const RankRecord& rank : run.ranks) {
      cells.push_back(column.cell(rank));
      is_empty = is_empty && cells.back().empty();
    }
    if (is_empty) continue;
    list.columns.push_back(column.head);
    for (size_t row = 0; row < cells.size(); ++row) list.rows[row].push_back(cells[row].empty() ? "\u2013" : cells[row]);
  }
  std::string intro = divided ? "Each rank's place on the axes of the layout and its part of the model. " : "";
  intro += "Weights, gradients and optimizer state by the formula of the layout.";
  if (counted) intro += " The peak of tensors is what the allocator counted, activations included, against the limit that it enforced.";
  return section("parts", "Who holds what", intro, table(list, "Who holds what"));
}

}  // namespace cohort::report
