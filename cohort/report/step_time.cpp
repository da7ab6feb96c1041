// The time of a step by phase: data, compute, exchange, optimizer, and the rest. Overall figures are means over the recorded steps of the
// run without the first (which allocates memory and warms caches); figures of a worker are its totals over the steps of its process.

#include <algorithm>
#include <cmath>
#include <vector>

#include "cohort/base/text/text.h"
#include "cohort/report/draw/chart.h"
#include "cohort/report/draw/format.h"
#include "cohort/report/sections.h"

namespace cohort::report {
namespace {

struct Phase {
  const char* name;
  const char* colour;
  const char* about;
  double StepRecord::* of_step;
  double RankRecord::* of_rank;
};

const Phase kPhases[] = {
    {"data", "c-data", "waiting for the next samples", &StepRecord::data_seconds, &RankRecord::data_seconds},
    {"compute", "c-compute", "forward and backward", &StepRecord::compute_seconds, &RankRecord::compute_seconds},
    {"exchange", "c-exchange", "waiting for gradients of the other workers, beyond what backward hides", &StepRecord::exchange_seconds,
     &RankRecord::exchange_seconds},
    {"optimizer", "c-optimizer", "updating the weights", &StepRecord::optimizer_seconds, &RankRecord::optimizer_seconds},
};
constexpr double kLeastOther = 0.005;  // Smaller shares of the step get no row.

struct Row {
  std::string name, colour, about;
  double seconds;
};

/// Means over the steps; empty where no step has phases.
std::vector<Row> overall(const RunRecord& run) {
  const size_t skip = run.steps.size() > 2 ? 1 : 0;
  std::vector<Row> rows;
  double known = 0;
  for (const Phase& phase : kPhases) {
    std::vector<double> values;
    for (size_t i = skip; i < run.steps.size(); ++i) values.push_back(run.steps[i].*phase.of_step);
    const double value = mean(values);
    if (!std::isfinite(value)) continue;
    rows.push_back({phase.name, phase.colour, phase.about, std::max(value, 0.0)});
    known += rows.back().seconds;
  }
  if (rows.empty()) return rows;
  std::vector<double> steps;
  for (size_t i = skip; i < run.steps.size(); ++i) steps.push_back(run.steps[i].step_seconds);
  const double other = mean(steps) - known;
  if (other > kLeastOther * known) rows.push_back({"other", "c-other", "the rest of the step", other});
  return rows;
}

double total(const std::vector<Row>& rows) {
  double sum = 0;
  for (const Row& row : rows) sum += row.seconds;
  return sum;
}

std::string words(const std::vector<Row>& rows) {
  std::string out;
  for (const Row& row : rows)
    out += (out.empty() ? "" : ", ") + row.name + " " + milliseconds_text(row.seconds) + " (" + percent_text(row.seconds / total(rows), 0) +
           ")";
  return out;
}

std::vector<Row> of_rank(const RankRecord& rank, int64_t num_steps) {
  std::vector<Row> rows;
  if (num_steps <= 0) return rows;
  for (const Phase& phase : kPhases) {
    const double value = rank.*phase.of_rank / static_cast<double>(num_steps);
    if (std::isfinite(value)) rows.push_back({phase.name, phase.colour, phase.about, std::max(value, 0.0)});
  }
  return rows;
}

std::vector<Part> parts_of(const std::vector<Row>& rows) {
  std::vector<Part> parts;
  for (const Row& row : rows) parts.push_back({row.colour, row.seconds});
  return parts;
}

std::string worker_bars(const RunRecord& run, const Summary& summary) {
  std::vector<BarRow> bars;
  for (const RankRecord& rank : run.ranks) {
    const std::vector<Row> rows = of_rank(rank, summary.steps_of_last_process);
    const std::string name = "rank " + std::to_string(rank.rank);
    bars.push_back({name, parts_of(rows), milliseconds_text(total(rows)), name + ": " + words(rows)});
  }
  return bar_rows(bars);
}

std::string two_lines(const std::string& first, const std::string& second) {
  return escape_html(first) + "<small>" + escape_html(second) + "</small>";
}

/// The cost of unequal workers: predicted for equal shares, and measured.
std::string waste_markup(const RunRecord& run) {
  if (!run.waste) return "";
  const WasteRecord& waste = *run.waste;
  Table list;
  list.columns = {{"shares", false}, {"waiting, predicted", true}, {"measured", true}, {"a step, predicted", true}, {"measured", true}};
  const std::string unknown = percent_text(kUnknown);
  list.rows.push_back({"equal", percent_text(waste.predicted_equal_waste), percent_text(waste.measured_equal_waste),
                       milliseconds_text(waste.predicted_equal_step_seconds), milliseconds_text(waste.measured_equal_step_seconds)});
  std::vector<std::string> parts;
  for (const double share : waste.shares) parts.push_back(percent_text(share, 0));
  list.rows.push_back({"those of the last steps: " + escape_html(join(parts, ", ")), unknown, percent_text(waste.measured_waste), unknown,
                       milliseconds_text(waste.measured_step_seconds)});
  return element("p", {}, escape_html(waste.sentence + ".")) + "\n" + table(list, "Waiting for the slowest worker");
}

/// The predicted performance of each synchronization mode.
std::string sync_markup(const RunRecord& run) {
  if (!run.sync_advice) return "";
  Table list;
  list.columns = {{"sync", false}, {"samples a second", true}, {"steps late", true}, {"samples to a goal", true}, {"time to it", true}};
  const auto range = [](double low, double high) {
    const std::string from = significant(low, 2), to = significant(high, 2);
    return from == to ? from : from + " to " + to;
  };
  for (const SyncAdviceRecord::Row& row : run.sync_advice->rows)
    list.rows.push_back({escape_html(row.options.empty() ? row.sync : row.sync + ", " + row.options),
                         significant(row.samples_per_second, 3), significant(row.mean_late_steps, 2),
                         range(row.samples_low, row.samples_high), range(row.time_low, row.time_high)});
  return element("p", {}, escape_html(run.sync_advice->sentence + ".")) + "\n" +
         table(list, "Ways of waiting for one another, beside sync=step");
}

/// Bytes of weights, gradients and optimizer state, by the formula of the layout. None where the sum overflows.
std::optional<int64_t> predicted_bytes(const RankRecord& rank) {
  int64_t sum = 0;
  for (const std::optional<int64_t>& bytes : {rank.weight_bytes, rank.gradient_bytes, rank.optimizer_bytes})
    if (!bytes || __builtin_add_overflow(sum, *bytes, &sum)) return std::nullopt;
  return sum;
}

}  // namespace

std::string step_time_section(const RunRecord& run, const Summary& summary) {
  const std::vector<Row> rows = overall(run);
  const std::string workers = worker_bars(run, summary);
  if (rows.empty() && workers.empty()) return "";
  std::string content, intro;
  const double sum = total(rows);
  if (sum > 0) {
    Table phases;
    phases.columns = {{"phase", false}, {"a step", true}, {"share", true}, {"", false}};
    for (const Row& row : rows) {
      phases.rows.push_back({element("span", {{"class", "key " + row.colour}}, escape_html(row.name)), milliseconds_text(row.seconds),
                             percent_text(row.seconds / sum), element("span", {{"class", "about"}}, escape_html(row.about))});
    }
    intro = "Mean " + milliseconds_text(sum) +
            (run.steps.size() > 2 ? " over the recorded steps, the first left out." : " over the recorded steps.");
    content = stacked_bar(parts_of(rows), sum, "Time of a step: " + words(rows), "stack total") + "\n" + table(phases, "Time of a step");
  }
  const std::string advice = run.exchange_advice.empty() ? "" : element("p", {}, escape_html(run.exchange_advice)) + "\n";
  return section("step-time", "Where the time of a step goes", intro, content + workers + waste_markup(run) + advice + sync_markup(run));
}

std::string workers_section(const RunRecord& run, const Summary& summary) {
  if (run.ranks.empty()) return "";
  Table list;
  list.columns = {{"rank", false}, {"host", false}, {"process", true}, {"samples", true}};
  for (const Phase& phase : kPhases) list.columns.push_back({phase.name, true});
  list.columns.push_back({"peak memory", true});
  const int64_t num_steps = summary.steps_of_last_process;
  for (const RankRecord& rank : run.ranks) {
    const double sum = total(of_rank(rank, num_steps));
    std::vector<std::string> row = {std::to_string(rank.rank),
                                    rank.device.empty() ? escape_html(rank.host) : two_lines(rank.host, rank.device),
                                    rank.pid ? std::to_string(*rank.pid) : count_text(rank.pid), count_text(rank.samples)};
    for (const Phase& phase : kPhases) {
      const double seconds = rank.*phase.of_rank;
      if (num_steps > 0 && sum > 0 && std::isfinite(seconds))
        row.push_back(two_lines(milliseconds_text(seconds / static_cast<double>(num_steps)),
                                percent_text(seconds / static_cast<double>(num_steps) / sum)));
      else row.push_back(escape_html(seconds_text(seconds)));
    }
    const std::string peak = bytes_text(rank.peak_memory_bytes);
    row.push_back(predicted_bytes(rank) ? two_lines(peak, bytes_text(predicted_bytes(rank)) + " by formula") : peak);
    list.rows.push_back(std::move(row));
  }
  std::string intro = num_steps > 0 ? "Times are a step, means over the " + plural(num_steps, "step") + " of these processes." : "";
  if (predicted_bytes(run.ranks.front()))
    intro +=
        " The formula counts weights, gradients and optimizer state of the layout; the peak is all that the process held, libraries, data "
        "and activations included, "
        "and memory that several ranks share counts in each.";
  return section("workers", "Workers", intro, table(list, "Workers"));
}

}  // namespace cohort::report
