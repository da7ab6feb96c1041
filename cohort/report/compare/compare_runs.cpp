// The comparison page: an overview, the loss level that all runs reached and when, curves over samples and seconds, asynchronous workers,
// and the settings that differ.
#include "cohort/report/compare/compare_runs.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <system_error>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/text.h"
#include "cohort/job/specs/batch_schedule.h"
#include "cohort/report/draw/chart.h"
#include "cohort/report/draw/format.h"
#include "cohort/report/draw/page.h"
#include "cohort/report/sections.h"

namespace cohort::report {
namespace {

/// Seconds from the start of a run to the end of each recorded step; a record represents all steps since the previous one.
class Clock {
 public:
  explicit Clock(const RunRecord& run) : is_virtual_(run.async && std::isfinite(run.async->virtual_seconds)) {
    double seconds = 0;
    int64_t before = 0;
    for (const StepRecord& step : run.steps) {
      if (is_virtual_) seconds = step.virtual_seconds;
      else if (std::isfinite(step.step_seconds)) seconds += step.step_seconds * static_cast<double>(step.step - before);
      before = step.step;
      moments_.push_back({static_cast<double>(step.step), seconds});
    }
  }
  bool is_virtual() const { return is_virtual_; }

  /// Interpolated linearly between recorded steps; unknown after the last.
  double at(int64_t step) const {
    const auto x = static_cast<double>(step);
    const auto after = std::lower_bound(moments_.begin(), moments_.end(), x, [](const Point& moment, double at) { return moment.x < at; });
    if (after == moments_.end()) return kUnknown;
    const Point before = after == moments_.begin() ? Point{0, 0} : *(after - 1);
    return after->x > before.x ? before.y + (after->y - before.y) * (x - before.x) / (after->x - before.x) : after->y;
  }

 private:
  bool is_virtual_;
  std::vector<Point> moments_;  // x rises.
};

double seconds_of(const EvalRecord& eval, const Clock& clock) {
  return clock.is_virtual() && std::isfinite(eval.virtual_seconds) ? eval.virtual_seconds : clock.at(eval.step);
}

/// A smaller last batch of an epoch counts as a full one.
double samples_of(const RunRecord& run, double steps) {
  if (!run.start || !run.start->global_batch) return kUnknown;
  return static_cast<double>(*run.start->global_batch) * batches_before(parse_batch_schedule(run.start->batch_schedule), steps);
}

std::string colour_of(size_t index) { return concat("c-run", index + 1); }

/// One line per run; "" where no run has points.
std::string chart_of(const std::vector<RunRecord>& runs, const std::vector<std::string>& names, LineChart chart,
                     const std::function<Curve(const RunRecord&)>& curve_of, bool is_percent = false) {
  chart.x_high = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    Curve curve = curve_of(runs[i]);
    std::erase_if(curve, [](const Point& point) { return !std::isfinite(point.x) || !std::isfinite(point.y); });
    if (curve.empty()) continue;
    chart.x_high = std::max(chart.x_high, curve.back().x);
    const double last = curve.back().y;
    chart.series.push_back(
        {names[i], colour_of(i), std::move(curve), false, true, is_percent ? significant(last, 3) + " %" : significant(last, 3)});
  }
  if (chart.series.empty() || !(chart.x_high > 0)) return "";
  double low = std::numeric_limits<double>::infinity(), high = 0;
  for (const Series& series : chart.series)
    for (const Point& point : series.points) low = std::min(low, point.y), high = std::max(high, point.y);
  chart.logarithmic = low > 0 && high > 30 * low;
  chart.description = concat(chart.title, " of ", plural(std::ssize(chart.series), "run"), ", over ", chart.x_label, ".");
  return line_chart(chart);
}

/// Whether errors are in standard deviations instead of percent.
bool is_regression(const std::vector<RunRecord>& runs) {
  return std::all_of(runs.begin(), runs.end(), [](const RunRecord& run) { return summarize(run).is_regression; });
}

std::string curves(const std::vector<RunRecord>& runs, const std::vector<std::string>& names) {
  const auto over_samples = [](double EvalRecord::* value, double factor) {
    return [=](const RunRecord& run) {
      Curve curve;
      for (const EvalRecord& eval : run.evals) curve.push_back({samples_of(run, static_cast<double>(eval.step)), factor * (eval.*value)});
      return curve;
    };
  };
  /// Only of runs with this kind of clock, as virtual and measured seconds are not comparable.
  const auto over_seconds = [](double EvalRecord::* value, double factor, bool is_virtual) {
    return [=](const RunRecord& run) {
      const Clock clock(run);
      Curve curve;
      if (clock.is_virtual() != is_virtual) return curve;
      for (const EvalRecord& eval : run.evals) curve.push_back({seconds_of(eval, clock), factor * (eval.*value)});
      return curve;
    };
  };
  const bool regression = is_regression(runs);
  const double factor = regression ? 1 : 100;
  const char* const unit = regression ? "" : "%";
  std::string out = chart_of(runs, names, {.id = "loss-samples", .title = "Validation loss", .x_label = "samples", .wide = true},
                             over_samples(&EvalRecord::val_loss, 1), false);
  std::string small;
  for (const bool is_virtual : {false, true}) {
    const std::string seconds = is_virtual ? "seconds on the virtual clock" : "seconds of training steps";
    small += chart_of(runs, names, {.id = is_virtual ? "loss-virtual" : "loss-seconds", .title = "Validation loss", .x_label = seconds},
                      over_seconds(&EvalRecord::val_loss, 1, is_virtual), false);
    small += chart_of(runs, names,
                      {.id = is_virtual ? "error-virtual" : "error-seconds", .title = "Validation error", .unit = unit, .x_label = seconds},
                      over_seconds(&EvalRecord::val_error, factor, is_virtual), !regression);
  }
  small += chart_of(runs, names, {.id = "error-samples", .title = "Validation error", .unit = unit, .x_label = "samples"},
                    over_samples(&EvalRecord::val_error, factor), !regression);
  small += chart_of(
      runs, names, {.id = "loss-training", .title = "Training loss, smoothed", .x_label = "samples"},
      [](const RunRecord& run) {
        Curve curve = smoothed_loss(run);
        for (Point& point : curve) point.x = samples_of(run, point.x);
        return curve;
      },
      false);
  if (!small.empty()) out += element("div", {{"class", "charts"}}, small) + "\n";
  return out.empty() ? "" : section("curves", "Curves", "One colour a run; samples are steps times the global batch of each.", out);
}

std::string named(size_t index, const std::string& name) {
  return element("span", {{"class", "key " + colour_of(index)}}, escape_html(name));
}

std::string error_of(const Summary& summary, double error) { return summary.is_regression ? significant(error, 3) : percent_text(error); }

std::string overview(const std::vector<RunRecord>& runs, const std::vector<std::string>& names) {
  Table out{.columns = {{"run", false},
                        {"layout", false},
                        {"workers", true},
                        {"batch", true},
                        {"steps", true},
                        {"samples/s", true},
                        {"seconds", true},
                        {"validation loss", true},
                        {"lowest", true},
                        {"error", true},
                        {"lowest", true},
                        {"state", false}}};
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunRecord& run = runs[i];
    const Summary summary = summarize(run);
    const Clock clock(run);
    const double pace = clock.is_virtual() ? run.async->samples_per_virtual_second : summary.samples_per_second;
    const double seconds = clock.is_virtual() ? run.async->virtual_seconds : clock.at(summary.last_step);
    out.rows.push_back({named(i, names[i]), escape_html(run.layout.empty() ? "one process" : run.layout), count_text(summary.num_workers),
                        count_text(run.start ? run.start->global_batch : std::nullopt), count_text(summary.last_step), significant(pace, 3),
                        significant(seconds, 3) + (clock.is_virtual() ? " (virtual)" : ""), significant(summary.val_loss, 4),
                        significant(summary.best_val_loss, 4), error_of(summary, summary.val_error),
                        error_of(summary, summary.best_val_error), state_text(run.state)});
  }
  std::string content = table(out, "Results of each run");
  const double level = common_level(runs);
  std::string intro;
  if (std::isfinite(level)) {
    intro = concat("All runs reached a validation loss of ", significant(level, 4), "; the second table shows when.");
    Table when{.columns = {{"run", false}, {"samples to it", true}, {"seconds to it", true}, {"of the first run's samples", true}}};
    const double first = first_reaching(runs.front(), level).samples;
    for (size_t i = 0; i < runs.size(); ++i) {
      const Reached reached = first_reaching(runs[i], level);
      when.rows.push_back({named(i, names[i]), significant(reached.samples, 4),
                           significant(reached.seconds, 3) + (Clock(runs[i]).is_virtual() ? " (virtual)" : ""),
                           significant(reached.samples / first, 3)});
    }
    content += table(when, "When each run reached the common loss");
  }
  return section("runs", "Runs", intro, content);
}

/// Staleness and time shares of asynchronous and simulated runs.
std::string waiting(const std::vector<RunRecord>& runs, const std::vector<std::string>& names) {
  Table out{.columns = {{"run", false},
                        {"sync", false},
                        {"pushes", true},
                        {"late, half", true},
                        {"99 %", true},
                        {"lost", true},
                        {"deaths", true},
                        {"computing", true},
                        {"waiting", true},
                        {"moving", true},
                        {"bytes", true}}};
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i].async) continue;
    const AsyncRecord& async = *runs[i].async;
    double computing = 0, idle = 0, moving = 0;
    for (const AsyncRecord::Worker& worker : async.workers)
      computing += worker.computing_seconds, idle += worker.waiting_seconds, moving += worker.moving_seconds;
    const double all = computing + idle + moving;
    out.rows.push_back({named(i, names[i]), escape_html(async.sync + (async.remedy.empty() ? "" : ", " + async.remedy)),
                        count_text(async.pushes), significant(async.staleness_median, 3), significant(async.staleness_tail, 3),
                        count_text(async.lost), count_text(async.deaths), percent_text(computing / all), percent_text(idle / all),
                        percent_text(moving / all), bytes_text(async.bytes_to_workers + async.bytes_to_server)});
  }
  if (out.rows.empty()) return "";
  return section("waiting", "Workers and pushes", "Staleness of pushes, in other pushes, and the time shares of the workers.",
                 table(out, "Asynchronous workers"));
}

/// Settings whose values differ between runs.
std::string differences(const std::vector<RunRecord>& runs, const std::vector<std::string>& names) {
  std::vector<std::string> keys;
  for (const RunRecord& run : runs)
    for (const ConfigValue& value : run.config)
      if (std::find(keys.begin(), keys.end(), value.key) == keys.end()) keys.push_back(value.key);
  Table out{.columns = {{"setting", false}}};
  for (size_t i = 0; i < runs.size(); ++i) out.columns.push_back({names[i], false});
  for (const std::string& key : keys) {
    std::vector<std::string> row = {"<code>" + escape_html(key) + "</code>"};
    std::set<std::string> seen;
    for (const RunRecord& run : runs) {
      const std::string value = config_value(run, key);
      seen.insert(value);
      row.push_back(value.empty() ? "\u2013" : escape_html(value));
    }
    if (seen.size() > 1 && key != "run") out.rows.push_back(std::move(row));
  }
  if (out.rows.empty()) return section("settings", "Settings", "All runs have the same settings.", "<p></p>\n");
  return section("settings", "Settings", "Those that differ.", table(out, "Settings that differ"));
}

/// The last component of each path; whole paths where two would be equal.
std::vector<std::string> names_of(const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  for (const std::string& path : paths) {
    std::filesystem::path folder = std::filesystem::path(path).lexically_normal();
    if (!folder.has_filename()) folder = folder.parent_path();
    names.push_back(folder.filename().string());
  }
  return std::set<std::string>(names.begin(), names.end()).size() == names.size() ? names : paths;
}

}  // namespace

Reached first_reaching(const RunRecord& run, double level) {
  const Clock clock(run);
  for (const EvalRecord& eval : run.evals)
    if (eval.val_loss <= level) return {samples_of(run, static_cast<double>(eval.step)), seconds_of(eval, clock)};
  return {};
}

double common_level(const std::vector<RunRecord>& runs) {
  double level = -std::numeric_limits<double>::infinity();
  for (const RunRecord& run : runs) {
    double lowest = std::numeric_limits<double>::infinity();
    for (const EvalRecord& eval : run.evals)
      if (std::isfinite(eval.val_loss)) lowest = std::min(lowest, eval.val_loss);
    level = std::max(level, lowest);
  }
  return std::isfinite(level) ? level : kUnknown;
}

std::string comparison_page(const std::vector<RunRecord>& runs, const std::vector<std::string>& names) {
  const std::string title = concat(plural(std::ssize(runs), "run"), ": ", join(names, ", "));
  std::string content =
      "<main>\n<header>\n<div class=\"top\"><span class=\"brand\">Cohort</span></div>\n<h1>" + escape_html(title) + "</h1>\n";
  std::set<std::string> models, data;
  for (const RunRecord& run : runs) {
    const Summary summary = summarize(run);
    models.insert(summary.model), data.insert(summary.data);
  }
  if (models.size() > 1 || data.size() > 1)
    content +=
        "<p class=\"banner\">" +
        escape_html(concat("These runs differ in ", models.size() > 1 ? "model" : "", models.size() > 1 && data.size() > 1 ? " and " : "",
                           data.size() > 1 ? "data" : "", ", so their losses need not compare.")) +
        "</p>\n";
  content += "</header>\n" + overview(runs, names) + curves(runs, names) + waiting(runs, names) + differences(runs, names);
  return document(title, content +
                             "<footer>Written by <code>cohort report RUN RUN...</code> from each run's metrics.jsonl and config.toml."
                             "</footer>\n</main>\n");
}

void write_comparison(const std::vector<std::string>& paths, const std::string& file) {
  if (paths.size() < 2 || paths.size() > kMaxCompared)
    fail(ErrorCode::kBadInput, "report: ", paths.size(), " runs side by side; expected 2 to ", kMaxCompared);
  std::set<std::string> seen;
  for (const std::string& path : paths) {
    std::error_code ignored;
    const std::filesystem::path whole = std::filesystem::weakly_canonical(path, ignored);
    if (!seen.insert(ignored ? path : whole.string()).second)
      fail(ErrorCode::kBadInput, "report: ", path, " is given twice; name each run once");
  }
  std::vector<RunRecord> runs;
  for (const std::string& path : paths) runs.push_back(read_run(path));
  write_file_atomically(file, comparison_page(runs, names_of(paths)));
}

}  // namespace cohort::report
