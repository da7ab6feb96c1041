// Time to the goal against batch size, one line a number of workers.

#include <cmath>
#include <map>

#include "cohort/report/draw/format.h"
#include "cohort/report/study/study_figures.h"

namespace cohort::report {

Figure figure_worth(const study::Worth& worth, const study::GoalSpec& goal) {
  Figure figure{.id = "worth_time",
                .heading = "Time to the goal",
                .intro = "Steps to the goal times the seconds of a step, measured here with as many workers. The interval joins both."};
  std::map<int, PlotSeries> lines;
  for (const study::WorthCell& cell : worth.cells) {
    Mark mark{.x = static_cast<double>(cell.batch_size), .y = cell.seconds};
    if (std::isfinite(cell.seconds_low)) mark.bar = std::pair(cell.seconds_low, cell.seconds_high);
    mark.fields = {number_field("batch size", mark.x),
                   number_field("workers", cell.num_workers),
                   number_field("steps", cell.steps),
                   number_field("seconds a step", cell.step_seconds),
                   number_field("seconds to the goal", cell.seconds),
                   number_field("seconds low", cell.seconds_low),
                   number_field("seconds high", cell.seconds_high)};
    lines[cell.num_workers].marks.push_back(std::move(mark));
  }
  if (lines.empty()) return figure;
  StudyChart chart{.id = "worth", .title = "Seconds to " + goal.text() + " against batch size", .size = StudyChart::Size::kWide};
  chart.description = plural(static_cast<int64_t>(lines.size()), "line") + ", one a number of workers.";
  chart.x = {"batch size (samples)", PlotAxis::Scale::kLog2, std::nullopt};
  chart.y = {"seconds", PlotAxis::Scale::kLog10, std::nullopt};
  for (auto& [num_workers, series] : lines) {
    series.name = plural(num_workers, "worker");
    series.look = static_cast<int>(chart.series.size());
    series.kind = PlotSeries::Kind::kJoined;
    chart.series.push_back(std::move(series));
  }
  figure.panels.push_back(std::move(chart));
  return figure;
}

}  // namespace cohort::report
