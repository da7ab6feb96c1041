#include "cohort/report/plan/goal_section.h"

#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/report/draw/chart.h"
#include "cohort/report/draw/format.h"
#include "cohort/report/draw/page.h"

namespace cohort::report {
namespace {

std::string end_text(double seconds) { return std::isfinite(seconds) ? human_seconds(seconds) : "unknown"; }

std::string rows_table(const ModelProfile& profile, const TimeToGoal& goal) {
  Table rows{{{"workers at most", true},
              {"used", true},
              {"batch size", true},
              {"steps", true},
              {"step", true},
              {"time to the goal", true},
              {"interval"},
              {"worker-hours", true},
              {"speed-up", true},
              {"worth having"},
              {"layout"}},
             {}};
  for (const GoalRow& row : goal.rows) {
    if (!row.plan) {
      rows.rows.push_back({concat(row.num_workers), "", "", "", "", "", "", "", "", "", "no plan was found"});
      continue;
    }
    const RankedPlan& plan = *row.plan;
    rows.rows.push_back(
        {concat(row.num_workers), concat(plan.candidate.layout.num_ranks()), with_commas(plan.global_batch),
         with_commas(std::llround(steps_of(plan))), human_seconds(plan.forecast.step_seconds), human_seconds(plan.objective),
         concat(end_text(plan.low), " to ", end_text(plan.high)), significant(worker_hours(plan), 3), significant(row.speed_up, 3),
         row.num_workers <= goal.num_worth_having ? "yes" : "no", element("code", {}, escape_html(short_layout(profile, plan)))});
  }
  return table(rows, "time to the goal by number of workers");
}

std::string rows_chart(const TimeToGoal& goal) {
  StudyChart chart{.id = "goal",
                   .title = "time to the goal against workers",
                   .description = "Seconds to the goal of the best plan for each number of workers, with their intervals.",
                   .x = {.label = "workers", .scale = PlotAxis::Scale::kLog2, .range = {}},
                   .y = {.label = "seconds", .scale = PlotAxis::Scale::kLog10, .range = {}}};
  PlotSeries best{.name = "best plan", .kind = PlotSeries::Kind::kJoined};
  for (const GoalRow& row : goal.rows) {
    if (!row.plan) continue;
    best.marks.push_back(
        {.x = static_cast<double>(row.num_workers),
         .y = row.plan->objective,
         .bar = std::pair{row.plan->low, row.plan->high},
         .fields = {number_field("workers", row.num_workers), number_field("batch size", static_cast<double>(row.plan->global_batch)),
                    number_field("seconds", row.plan->objective), number_field("worker_hours", worker_hours(*row.plan))}});
  }
  chart.series.push_back(std::move(best));
  if (goal.plain) {
    PlotSeries plain{.name = "plain data parallelism", .look = 1};
    plain.marks.push_back({.x = static_cast<double>(goal.plain_workers),
                           .y = goal.plain->objective,
                           .bar = std::pair{goal.plain->low, goal.plain->high},
                           .fields = {number_field("workers", goal.plain_workers), number_field("seconds", goal.plain->objective)}});
    chart.series.push_back(std::move(plain));
  }
  if (goal.num_worth_having > 0)
    chart.uprights.push_back({.name = "worth having", .at = static_cast<double>(goal.num_worth_having), .interval = {}});
  return study_chart(chart);
}

}  // namespace

std::string goal_section(const Plan& plan) {
  if (!plan.goal) return "";
  return section("goal", concat("Time to ", plan.goal->goal.empty() ? "the goal" : plan.goal->goal),
                 "The best plan for each number of workers: steps to the goal times the seconds of a step, and the price in worker-hours.",
                 rows_table(plan.request.problem.profile, *plan.goal) + rows_chart(*plan.goal));
}

}  // namespace cohort::report
