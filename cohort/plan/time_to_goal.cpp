// The time to a goal by number of workers.
//
//   1. The most workers allowed: half of the time, first so that Ctrl-C does not lose it.
//   2. A half, a quarter, ..., 1 of the workers, and plain data parallelism over all: each gets an equal share of the time that is left.
//   3. A plan for fewer workers is also one for more, so it replaces a worse plan of an interrupted search, in the answer too.
//
// Plain data parallelism has dp over all workers, no ZeRO, no recompute, the precision of the answer and its own best batch. Where no
// batch of the curve has a sample for each worker, it may use batches past the flat point.
//
// Cost: 2 + log2(workers) searches within one search's time.
#include "cohort/plan/time_to_goal.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/plan/explain.h"
#include "cohort/plan/plan.h"

namespace cohort {
namespace {

using Progress = std::function<void(const SearchProgress&)>;

constexpr double kShareOfAll = 0.5;

/// search_plan_if_any() with a limit of time.
std::optional<PlanAnswer> try_search(SearchRequest request, double seconds, const Progress& progress, const std::atomic<bool>* stop) {
  if (stop && stop->load()) return std::nullopt;
  request.search_seconds = std::max(0.01, seconds);
  request.says_what_would_fit = false;
  return search_plan_if_any(request, progress, stop);  // Given keys may need more workers.
}

/// The request for plain data parallelism; nothing where given keys contradict it.
std::optional<SearchRequest> plain_request(const SearchRequest& request, const std::vector<GoalSteps>& every_point, int workers,
                                           const RankedPlan& best) {
  SearchRequest plain = request;
  plain.may_compress = false;
  plain.num_runners_up = 0;
  const std::map<std::string, std::string> keys = {{"dp", std::to_string(workers)},
                                                   {"pp", "1"},
                                                   {"tp", "1"},
                                                   {"zero", "0"},
                                                   {"recompute", "none"},
                                                   {"compress", "none"},
                                                   {"precision", best.candidate.layout.precision}};
  for (const auto& [key, value] : request.fixed)
    if (!keys.contains(key) && key != "accumulate" && key != "shares") return std::nullopt;
  for (const auto& [key, value] : keys) {
    if (value.empty()) continue;
    const auto [at, is_new] = plain.fixed.emplace(key, value);
    if (!is_new && at->second != value) return std::nullopt;
  }
  const auto has_samples = [&](const GoalSteps& point) { return point.batch_size >= workers; };
  if (std::none_of(plain.steps_curve.begin(), plain.steps_curve.end(), has_samples)) plain.steps_curve = every_point;
  return plain;
}

void find_plain(const SearchRequest& request, const std::vector<GoalSteps>& every_point, int workers, double seconds,
                const Progress& progress, const std::atomic<bool>* stop, TimeToGoal& goal) {
  const auto plain = workers > 1 ? plain_request(request, every_point, workers, goal.chosen) : std::nullopt;
  if (!plain || (stop && stop->load())) return;
  const double start = steady_seconds();
  const auto found = try_search(*plain, seconds, progress, stop);
  if (!found && steady_seconds() - start >= 0.9 * seconds) return;  // Out of time: unknown.
  goal.plain_workers = workers;
  if (found) goal.plain = found->best;
}

/// A plan for fewer workers is also one for more.
void take_better_of_fewer(std::vector<GoalRow>& rows) {
  for (size_t i = 1; i < rows.size(); ++i)
    if (rows[i - 1].plan && rows[i].plan && rows[i - 1].plan->objective < rows[i].plan->objective) rows[i].plan = rows[i - 1].plan;
}

}  // namespace

GoalAnswer search_to_goal(const SearchRequest& request, const std::vector<GoalSteps>& every_point, const Progress& progress,
                          const std::atomic<bool>* stop) {
  const double end = steady_seconds() + request.search_seconds;
  const int most = request.most_workers();
  std::vector<int> fewer;
  for (int workers = 1; workers < most; workers *= 2) fewer.push_back(workers);
  SearchRequest all = request;
  if (!fewer.empty()) all.search_seconds *= kShareOfAll;
  GoalAnswer out{.answer = search_plan(all, progress, stop), .goal = {}};
  TimeToGoal& goal = out.goal;
  goal.chosen = out.answer.best;
  auto left = static_cast<double>(fewer.size()) + 1;
  const auto share = [&] { return (end - steady_seconds()) / left--; };
  find_plain(request, every_point, most, share(), progress, stop, goal);
  std::vector<GoalRow> rows = {{.num_workers = most, .plan = out.answer.best}};
  for (size_t i = fewer.size(); i-- > 0;) {
    SearchRequest small = request;
    small.num_workers = fewer[i];
    const double seconds = share(), start = steady_seconds();
    const auto found = try_search(small, seconds, progress, stop);
    const bool is_cut_short = steady_seconds() - start >= seconds || (stop && stop->load());
    if (found || !is_cut_short) rows.push_back({.num_workers = fewer[i], .plan = found ? std::optional(found->best) : std::nullopt});
  }
  std::reverse(rows.begin(), rows.end());
  take_better_of_fewer(rows);
  if (rows.back().plan->objective < out.answer.best.objective) {
    out.answer.runners_up.insert(out.answer.runners_up.begin(), out.answer.best);
    goal.chosen = out.answer.best = *rows.back().plan;
    out.answer.lower_bound = std::min(out.answer.lower_bound, goal.chosen.objective);
    out.answer.optimal = false;
  }
  goal.rows = std::move(rows);
  return out;
}

TimeToGoal goal_of_machines(const MachineAnswer& found, const std::vector<GoalSteps>& every_point, double seconds, const Progress& progress,
                            const std::atomic<bool>* stop) {
  TimeToGoal goal;
  goal.chosen = found.answer.best;
  for (const MachineAnswer::Tried& tried : found.tried)
    goal.rows.push_back({.num_workers = tried.request.problem.cluster.num_devices(), .plan = tried.plan});
  take_better_of_fewer(goal.rows);
  if (!found.tried.empty())
    find_plain(found.tried.back().request, every_point, goal.rows.back().num_workers, seconds, progress, stop, goal);
  return goal;
}

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

const std::vector<size_t> kGoalWidths = {7, 6, 8, 10, 14, 25, 12, 8, 5};

const GoalRow* row_of(const TimeToGoal& goal, int num_workers) {
  for (const GoalRow& row : goal.rows)
    if (row.num_workers == num_workers && row.plan) return &row;
  return nullptr;
}

/// The savings up to the knee and beyond.
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

Json plan_json(const ModelProfile& profile, const RankedPlan& plan) {
  return {{"layout", to_json(layout_of(profile, plan))},
          {"num_workers", plan.candidate.layout.num_ranks()},
          {"global_batch", plan.global_batch},
          {"steps", steps_of(plan)},
          {"predicted_step_seconds", plan.forecast.step_seconds},
          {"seconds", plan.objective},
          {"interval", {finite_json(plan.low), finite_json(plan.high)}},
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
  out += table_row(kGoalWidths,
                   {"workers", "batch", "steps", "step", "time to goal", "interval", "worker-hours", "speed-up", "worth", "layout"});
  for (const GoalRow& row : goal.rows) {
    if (!row.plan) {
      out += table_row(kGoalWidths, {concat(row.num_workers), "-", "-", "-", "-", "-", "-", "-", "-", "no plan was found"});
      continue;
    }
    const RankedPlan& plan = *row.plan;
    const int used = plan.candidate.layout.num_ranks();
    out += table_row(kGoalWidths,
                     {concat(row.num_workers), with_commas(plan.global_batch), with_commas(std::llround(steps_of(plan))),
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
