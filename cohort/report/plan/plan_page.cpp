// The page of a plan: reasons, time to a goal, workers, timeline, utilisation, time against memory, alternatives, and what would change it.
#include "cohort/report/plan/plan_page.h"

#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/text.h"
#include "cohort/report/draw/chart.h"
#include "cohort/report/draw/format.h"
#include "cohort/report/draw/page.h"
#include "cohort/schedule/scheduler.h"
#include "cohort/schedule/simulate.h"

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
    chart.vertical_lines.push_back({.name = "worth having", .at = static_cast<double>(goal.num_worth_having), .interval = {}});
  return study_chart(chart);
}

constexpr int kDrawnMicroBatches = 24;

std::string list_of(const std::vector<std::string>& sentences) {
  std::string items;
  for (const std::string& sentence : sentences) items += element("li", {}, escape_html(sentence));
  return element("ul", {}, items);
}

std::string key_figures(const Plan& plan) {
  const StepForecast& forecast = plan.answer.best.forecast;
  const Objective objective = plan.request.objective;
  const double gap = plan.answer.lower_bound > 0 ? plan.answer.best.objective / plan.answer.lower_bound - 1 : 0;
  return tiles(
      {{"step", human_seconds(forecast.step_seconds),
        concat(human_seconds(forecast.low_seconds), " to ", human_seconds(forecast.high_seconds))},
       {"no plan is below", objective_text(objective, plan.answer.lower_bound),
        concat(plan.answer.bound_by, plan.answer.optimal ? ": optimal" : concat(", gap ", percent(gap)))},
       {"fullest rank", human_bytes(forecast.peak_memory_bytes()), concat("of ", human_bytes(forecast.workers.front().memory_limit))},
       {"ranks", concat(plan.answer.best.candidate.layout.num_ranks()),
        concat("of ", plan.request.problem.cluster.num_devices(), " devices")}});
}

std::string layer_cell(const ModelProfile& profile, const std::vector<int>& layers) {
  std::vector<std::string> names;
  for (const int layer : layers) names.push_back(profile.layers[static_cast<size_t>(layer)].name);
  const std::string all = join(names, " ");
  if (names.size() <= 6) return escape_html(all);
  return element(
      "details", {},
      element("summary", {}, escape_html(concat(names.front(), " ... ", names.back(), " (", names.size(), ")"))) + escape_html(all));
}

std::string workers_section(const Plan& plan) {
  Table rows{{{"worker", true},
              {"ranks", true},
              {"device"},
              {"layers"},
              {"forward", true},
              {"backward", true},
              {"exposed exchange", true},
              {"update", true},
              {"idle", true},
              {"weights and gradients", true},
              {"optimizer", true},
              {"activations", true},
              {"other", true},
              {"all", true}},
             {}};
  const StepForecast& forecast = plan.answer.best.forecast;
  for (size_t worker = 0; worker < forecast.workers.size(); ++worker) {
    const WorkerForecast& its = forecast.workers[worker];
    const StepMemory& memory = its.memory;
    rows.rows.push_back({concat(worker), concat(its.num_ranks), escape_html(its.device),
                         layer_cell(plan.request.problem.profile, its.layers), human_seconds(its.forward_seconds),
                         human_seconds(its.backward_seconds), human_seconds(its.exposed_seconds), human_seconds(its.update_seconds),
                         percent(its.idle_seconds / forecast.step_seconds), human_bytes(memory.weights + memory.gradients),
                         human_bytes(memory.optimizer), human_bytes(memory.stash + memory.recompute),
                         human_bytes(memory.buffers + memory.buckets + memory.overhead), human_bytes(memory.total())});
  }
  return section("workers", "Workers", "One row per position on the pipeline axis; bytes of its fullest rank.",
                 table(rows, "workers of the plan"));
}

std::string timeline_section(const Plan& plan) {
  const RankedPlan& best = plan.answer.best;
  if (best.candidate.layout.pp == 1) return "";
  PlanProblem problem = plan.request.problem;
  Candidate drawn = best.candidate;
  const int all = drawn.layout.microbatches;
  problem.global_batch = best.global_batch;
  if (all > kDrawnMicroBatches && !drawn.layout.schedule.ends_with(".json")) {
    drawn.layout.microbatches = kDrawnMicroBatches;
    problem.global_batch = best.candidate.micro_batch(best.global_batch) * num_pipelines(drawn.layout) *
                           std::max(1, drawn.layout.accumulate) * kDrawnMicroBatches;
  }
  const StepForecast forecast = forecast_step(problem, drawn, /*with_timeline=*/true);
  return section("timeline", "The pipeline's step",
                 drawn.layout.microbatches < all ? concat("Of ", all, " micro-batches the first ", kDrawnMicroBatches, ".")
                                                 : concat("All ", all, " micro-batches."),
                 scroll_box("The step, simulated", timeline_svg_of_seconds(forecast.timeline), "scroll timeline"));
}

std::string bar(double share, const std::string& what) {
  return stacked_bar({{"c-train", share}}, 1, concat(what, ": ", percent(share)), "stack");
}

std::string utilisation_section(const Plan& plan) {
  const Utilisation shares = utilisation_of(plan.request, plan.answer.best);
  if (shares.naive.empty()) return "";
  Table rows{{{"worker", true}, {"plain cut", true}, {"this plan", true}, {"shares of a step"}}, {}};
  for (size_t worker = 0; worker < shares.naive.size(); ++worker)
    rows.rows.push_back({concat(worker), percent(shares.naive[worker]), percent(shares.planned[worker]),
                         bar(shares.naive[worker], "plain cut") + bar(shares.planned[worker], "this plan")});
  return section("utilisation", "Naive against planned",
                 concat("How much of a step each worker computes. The plain cut has the same stages and one of them at work at a time: ",
                        human_seconds(shares.naive_step_seconds), " a step."),
                 table(rows, "utilisation by worker"));
}

std::string front_section(const Plan& plan) {
  const ModelProfile& profile = plan.request.problem.profile;
  StudyChart chart{.id = "front",
                   .title = "time against memory",
                   .description = "Step time of each plan that no other beats in both, by the memory of its fullest rank.",
                   .x = {.label = "memory of the fullest rank, GiB", .scale = PlotAxis::Scale::kLog2},
                   .y = {.label = "seconds a step", .scale = PlotAxis::Scale::kLog10}};
  PlotSeries series{.name = "plans", .kind = PlotSeries::Kind::kJoined};
  for (const RankedPlan& one : plan.answer.front)
    series.marks.push_back(
        {.x = static_cast<double>(one.forecast.peak_memory_bytes()) / 1073741824,
         .y = one.forecast.step_seconds,
         .bar = std::pair{one.forecast.low_seconds, one.forecast.high_seconds},
         .fields = {text_field("layout", to_text(layout_of(profile, one))), number_field("step_seconds", one.forecast.step_seconds),
                    number_field("bytes", static_cast<double>(one.forecast.peak_memory_bytes()))}});
  chart.series.push_back(std::move(series));
  return section("front", "Time against memory", "Plans that no other beats in both.", study_chart(chart));
}

std::string others_section(const Plan& plan) {
  if (plan.answer.runners_up.empty()) return "";
  Table rows{{{"layout"}, {"step", true}, {"interval"}, {"memory", true}, {"why not"}}, {}};
  for (const RankedPlan& one : plan.answer.runners_up)
    rows.rows.push_back({element("code", {}, escape_html(to_text(layout_of(plan.request.problem.profile, one)))),
                         human_seconds(one.forecast.step_seconds),
                         concat(human_seconds(one.forecast.low_seconds), " to ", human_seconds(one.forecast.high_seconds)),
                         human_bytes(one.forecast.peak_memory_bytes()), escape_html(why_not(plan.request, plan.answer, one))});
  return section("others", "The next plans", "Each differs from all before it in a degree, ZeRO, schedule, precision or recompute.",
                 table(rows, "the next plans"));
}

/// The time to a goal by number of workers; "" where the plan has another objective. Requires mark_shapes() earlier on the page.
std::string goal_section(const Plan& plan) {
  if (!plan.goal) return "";
  return section("goal", concat("Time to ", plan.goal->goal.empty() ? "the goal" : plan.goal->goal),
                 "The best plan for each number of workers: steps to the goal times the seconds of a step, and the price in worker-hours.",
                 rows_table(plan.request.problem.profile, *plan.goal) + rows_chart(*plan.goal));
}

}  // namespace

void write_plan_page(const std::string& path, const Plan& plan, const std::vector<WhatIf>& changes) {
  const std::string layout = to_text(layout_of(plan.request.problem.profile, plan.answer.best));
  std::string body =
      element("h1", {}, escape_html(concat("Plan for ", plan.request.problem.profile.model, " on ", plan.request.problem.cluster.name)));
  body += element("p", {}, element("code", {}, escape_html(layout)));
  body += key_figures(plan);
  body += mark_shapes();
  body += section("reasons", "Why this one", "", list_of(plan.reasons));
  body += goal_section(plan);
  body += workers_section(plan) + timeline_section(plan) + utilisation_section(plan) + front_section(plan) + others_section(plan);
  if (!changes.empty()) {
    std::vector<std::string> sentences;
    for (const WhatIf& change : changes) sentences.push_back(change.sentence);
    for (const std::string& price : shadow_prices(changes)) sentences.push_back(price);
    body += section("changes", "What would change it", "The search again, on another cluster.", list_of(sentences));
  }
  body += section("source", "Inputs", "",
                  definitions({{"model", plan.request.problem.profile.model},
                               {"costs", plan.request.problem.profile.source},
                               {"cluster", plan.request.problem.cluster.name},
                               {"cluster numbers", plan.request.problem.cluster.source},
                               {"layouts evaluated", concat(plan.answer.num_layouts)},
                               {"search", human_seconds(plan.answer.search_seconds)}}));
  write_file_atomically(path, document("Cohort: plan", body));
}

}  // namespace cohort::report
