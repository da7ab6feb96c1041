// Asynchronous training, with real or simulated workers: loss over virtual time, staleness of pushes, and the work of each worker.

#include <algorithm>
#include <cmath>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/report/draw/chart.h"
#include "cohort/report/draw/format.h"
#include "cohort/report/draw/page.h"
#include "cohort/report/sections.h"

namespace cohort::report {
namespace {

constexpr size_t kMaxRows = 32;

std::string loss_over_time(const RunRecord& run) {
  LineChart chart;
  chart.id = "virtual-loss";
  chart.title = "Loss over virtual time";
  chart.x_label = "seconds on the virtual clock";
  chart.wide = true;
  Curve training, validation;
  const Curve smoothed = smoothed_loss(run);
  for (size_t i = 0; i < run.steps.size() && i < smoothed.size(); ++i) training.push_back({run.steps[i].virtual_seconds, smoothed[i].y});
  for (const EvalRecord& eval : run.evals) validation.push_back({eval.virtual_seconds, eval.val_loss});
  // Steps of a synchronous run before a resume have no virtual time.
  for (Curve* const curve : {&training, &validation}) std::erase_if(*curve, [](const Point& point) { return !std::isfinite(point.x); });
  if (training.empty()) return "";
  chart.x_high = std::max(training.back().x, validation.empty() ? 0 : validation.back().x);
  chart.series.push_back({"training, smoothed", "c-train", training, false, training.size() < 20, ""});
  if (!validation.empty()) chart.series.push_back({"validation", "c-val", validation, false, true, significant(validation.back().y, 3)});
  chart.description = concat("Training loss falls from ", significant(training.front().y, 3), " to ", significant(training.back().y, 3),
                             " in ", significant(chart.x_high, 3), " virtual seconds. ");
  return line_chart(chart);
}

std::string staleness_table(const AsyncRecord& async) {
  Table out{.columns = {{"pushes late", true}, {"pushes", true}, {"of all", true}}};
  for (size_t i = 0; i < async.staleness_from.size() && i < async.pushes_of_staleness.size(); ++i) {
    const int64_t from = async.staleness_from[i], to = from < 2 ? from : 2 * from - 1;
    out.rows.push_back(
        {from == to ? with_commas(from) : concat(with_commas(from), " to ", with_commas(to)), with_commas(async.pushes_of_staleness[i]),
         percent_text(static_cast<double>(async.pushes_of_staleness[i]) / static_cast<double>(std::max<int64_t>(1, async.pushes)))});
  }
  return table(out, "How many other pushes were applied between the pull and the push of a worker");
}

std::string workers_table(const AsyncRecord& async) {
  std::vector<AsyncRecord::Worker> workers = async.workers;
  std::stable_sort(workers.begin(), workers.end(), [](const auto& a, const auto& b) { return a.samples > b.samples; });
  Table out{.columns = {{"worker", true},
                        {"speed", true},
                        {"pushes", true},
                        {"samples", true},
                        {"lost", true},
                        {"deaths", true},
                        {"left", true},
                        {"computing s", true},
                        {"waiting s", true},
                        {"moving s", true}}};
  for (size_t i = 0; i < workers.size(); ++i) {
    // Only the first and the last of many workers.
    if (workers.size() > kMaxRows && i >= kMaxRows / 2 && i < workers.size() - kMaxRows / 2) continue;
    const AsyncRecord::Worker& w = workers[i];
    out.rows.push_back({with_commas(w.worker), significant(w.speed, 3), with_commas(w.pushes), with_commas(w.samples), with_commas(w.lost),
                        with_commas(w.deaths), with_commas(w.left), significant(w.computing_seconds, 3), significant(w.waiting_seconds, 3),
                        significant(w.moving_seconds, 3)});
  }
  return table(out, workers.size() > kMaxRows
                        ? concat("The ", kMaxRows / 2, " workers with most samples and as many with fewest, of ", workers.size())
                        : std::string("What each worker did"));
}

}  // namespace

std::string async_section(const RunRecord& run) {
  if (!run.async) return "";
  const AsyncRecord& async = *run.async;
  const bool is_virtual = !async.clock.empty();
  const std::string clock = is_virtual ? concat(" under a simulated clock (", async.clock, "), ", significant(async.virtual_seconds, 3),
                                                " virtual seconds, ", significant(async.samples_per_virtual_second, 3), " samples a second")
                                       : "";
  const std::string intro =
      concat("sync=", async.sync, async.compress.empty() ? "" : ", pushes as " + async.compress,
             async.remedy.empty() ? "" : ", remedy " + async.remedy, ": ", plural(static_cast<int64_t>(async.workers.size()), "worker"),
             clock, ". Half of the pushes were at most ", significant(async.staleness_median, 3), " pushes late, 99 % at most ",
             significant(async.staleness_tail, 3), "; ", significant(async.mean_late_steps, 3), " steps in the mean. ",
             human_bytes(async.bytes_to_workers), " went to workers, ", human_bytes(async.bytes_to_server),
             " came from them. Work items lost with workers: ", with_commas(async.lost), ".");
  return section("virtual", "Workers that do not wait", intro,
                 (is_virtual ? loss_over_time(run) : "") + staleness_table(async) + workers_table(async));
}

}  // namespace cohort::report
