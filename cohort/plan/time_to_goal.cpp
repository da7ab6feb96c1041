#include "cohort/plan/time_to_goal.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/plan/plan.h"

namespace cohort {
namespace {

std::string workers_text(int number) { return concat(number, number == 1 ? " worker" : " workers"); }
std::string end_text(double seconds) { return std::isfinite(seconds) ? human_seconds(seconds) : "unknown"; }
std::string interval_text(const RankedPlan& plan) { return concat(end_text(plan.low), " to ", end_text(plan.high)); }

/// Three digits: 0.0123, 4.56, 789.
std::string hours_text(double hours) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", hours);
  return text;
}

std::string table_row(const std::vector<std::string>& cells) {
  static constexpr int kWidths[] = {7, 6, 8, 10, 14, 25, 12, 8, 5};
  std::string out;
  for (size_t i = 0; i + 1 < cells.size(); ++i) {
    char cell[96];
    std::snprintf(cell, sizeof cell, "%*s  ", kWidths[std::min<size_t>(i, 8)], cells[i].c_str());
    out += cell;
  }
  return out + cells.back() + "\n";
}

const GoalRow* row_of(const TimeToGoal& goal, int num_workers) {
  for (const GoalRow& row : goal.rows)
    if (row.num_workers == num_workers && row.plan) return &row;
  return nullptr;
}

/// What is saved above and below the knee.
std::string knee_sentence(const TimeToGoal& goal) {
  const GoalRow *knee = row_of(goal, goal.num_worth_having), *last = nullptr;
  for (const GoalRow& row : goal.rows)
    if (row.plan) last = &row;
  if (!knee || !last || goal.rows.size() < 2) return "";
  if (knee == last)
    return concat("all ", workers_text(knee->num_workers), " are worth having: each doubling saved 10 % of the time or more");
  const std::string not_worth = concat("more workers than ", knee->num_workers, " are not worth having: ");
  if (last->plan->candidate.layout.num_ranks() <= knee->num_workers) return not_worth + "no plan with more is faster";
  return concat(not_worth, "each doubling above saves less than 10 % of the time (", workers_text(last->num_workers), " are there ",
                percent(1 - last->plan->objective / knee->plan->objective), " sooner and cost ",
                hours_text(worker_hours(*last->plan) / worker_hours(*knee->plan)), " times the worker-hours)");
}

bool is_plain(const RankedPlan& plan, int workers) {
  const Layout& layout = plan.candidate.layout;
  return layout.dp == workers && !layout.is_model_parallel() && layout.zero == 0 && layout.compress == "none";
}

std::string plain_sentence(const TimeToGoal& goal) {
  if (goal.plain_workers < 2) return "";
  const std::string who = concat("plain data parallelism over all ", workers_text(goal.plain_workers));
  if (is_plain(goal.chosen, goal.plain_workers)) return concat("this is ", who);
  if (!goal.plain) return concat(who, " does not run: no batch of the curve that has a sample for each worker fits their memory");
  const double saved = 1 - goal.chosen.objective / goal.plain->objective;
  const bool is_past = std::find(goal.left_out.begin(), goal.left_out.end(), goal.plain->global_batch) != goal.left_out.end();
  return concat(who, ", at its own best batch of ", with_commas(goal.plain->global_batch), is_past ? " (past the flat point)" : "",
                ", takes ", human_seconds(goal.plain->objective), " to the goal: this plan saves ", percent(saved), " of it");
}

Json finite(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json plan_json(const ModelProfile& profile, const RankedPlan& plan) {
  return {{"layout", to_json(layout_of(profile, plan))},
          {"num_workers", plan.candidate.layout.num_ranks()},
          {"global_batch", plan.global_batch},
          {"steps", steps_of(plan)},
          {"predicted_step_seconds", plan.forecast.step_seconds},
          {"seconds", plan.objective},
          {"interval", {finite(plan.low), finite(plan.high)}},
          {"worker_hours", worker_hours(plan)}};
}

}  // namespace

double steps_of(const RankedPlan& plan) { return plan.objective / plan.forecast.step_seconds; }

double worker_hours(const RankedPlan& plan) { return plan.candidate.layout.num_ranks() * plan.objective / 3600; }

std::string short_layout(const ModelProfile& profile, const RankedPlan& plan) {
  Layout layout = layout_of(profile, plan);
  if (layout.precision == "fp32") layout.precision.clear();
  if (layout.accumulate == 1) layout.accumulate = 0;
  return layout.stages.empty() ? to_text(layout) : concat("stages side by side on ", layout.pp, " workers");
}

std::string goal_table(const ModelProfile& profile, const TimeToGoal& goal) {
  std::string out = concat("time to ", goal.goal.empty() ? "the goal" : goal.goal, "\n");
  out += table_row({"workers", "batch", "steps", "step", "time to goal", "interval", "worker-hours", "speed-up", "worth", "layout"});
  for (const GoalRow& row : goal.rows) {
    if (!row.plan) {
      out += table_row({concat(row.num_workers), "-", "-", "-", "-", "-", "-", "-", "-", "no plan was found"});
      continue;
    }
    const RankedPlan& plan = *row.plan;
    const int used = plan.candidate.layout.num_ranks();
    out += table_row({concat(row.num_workers), with_commas(plan.global_batch), with_commas(std::llround(steps_of(plan))),
                      human_seconds(plan.forecast.step_seconds), human_seconds(plan.objective), interval_text(plan),
                      hours_text(worker_hours(plan)), hours_text(row.speed_up), row.num_workers <= goal.num_worth_having ? "yes" : "no",
                      concat(short_layout(profile, plan), used < row.num_workers ? concat(" (", used, " used)") : "")});
  }
  return out;
}

std::vector<std::string> goal_sentences(const ModelProfile& profile, const TimeToGoal& goal) {
  const RankedPlan& plan = goal.chosen;
  const int workers = plan.candidate.layout.num_ranks();
  std::vector<std::string> out = {
      concat("batch size ", with_commas(plan.global_batch), " on ", workers_text(workers), ", ", short_layout(profile, plan), ": ",
             with_commas(std::llround(steps_of(plan))), " steps x ", human_seconds(plan.forecast.step_seconds), " = ",
             human_seconds(plan.objective), " to ", goal.goal.empty() ? "the goal" : goal.goal, " (", interval_text(plan), "), ",
             hours_text(worker_hours(plan)), " worker-hours"),
      goal.curve, knee_sentence(goal), plain_sentence(goal)};
  std::erase(out, "");
  return out;
}

Json to_json(const ModelProfile& profile, const TimeToGoal& goal) {
  Json json = plan_json(profile, goal.chosen);
  json["goal"] = goal.goal.empty() ? Json(nullptr) : Json(goal.goal);
  json["curve"] = goal.source;
  json["flat_from"] = goal.flat_from ? Json(*goal.flat_from) : Json(nullptr);
  json["left_out"] = goal.left_out;
  json["num_worth_having"] = goal.num_worth_having;
  Json rows = Json::array();
  for (const GoalRow& row : goal.rows) {
    Json one{{"most_workers", row.num_workers}, {"feasible", row.plan.has_value()}};
    if (row.plan) {
      one.update(plan_json(profile, *row.plan));
      one["speed_up"] = row.speed_up;
      one["worth_having"] = row.num_workers <= goal.num_worth_having;
    }
    rows.push_back(std::move(one));
  }
  json["rows"] = std::move(rows);
  json["plain_dp"] = goal.plain ? plan_json(profile, *goal.plain) : Json(nullptr);
  json["saved_against_plain_dp"] = goal.plain ? Json(1 - goal.chosen.objective / goal.plain->objective) : Json(nullptr);
  return json;
}

}  // namespace cohort
