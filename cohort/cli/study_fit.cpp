#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <set>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/output.h"
#include "cohort/cli/study.h"
#include "cohort/study/analysis/fits.h"
#include "cohort/study/analysis/self_checks.h"
#include "cohort/study/store/store.h"

namespace cohort {
namespace {

using study::Analysis;
using study::Fit;
using study::Regimes;
using Interval = std::optional<std::pair<double, double>>;

struct FitQuery {
  std::string path;
  std::optional<study::Law> law;        ///< Unset: all.
  double reference_batch = 0;           ///< 0: the smallest.
  std::optional<study::GoalSpec> goal;  ///< Unset: the study's first.
};

FitQuery read_query(const Arguments& arguments) {
  if (arguments.positional.size() != 2)
    fail(ErrorCode::kBadInput, "study fit takes one table (columns batch_size,steps) or one study's folder; ",
         arguments.positional.size() - 1, " were given");
  FitQuery query = {.path = arguments.positional[1]};
  if (arguments.options.contains("goal")) query.goal = study::parse_goal_spec(arguments.option("goal", ""));
  if (const std::string law = arguments.option("law", "all"); law != "all") query.law = study::parse_law(law);
  query.reference_batch = reference_batch(arguments);
  if (query.reference_batch > 0 && query.law.value_or(study::Law::kLogLinear) != study::Law::kLogLinear)
    fail(ErrorCode::kBadInput, "--reference-batch is of the law log-linear alone, and --law is ", study::name_of(*query.law),
         "; leave it out, or give --law log-linear");
  return query;
}

/// What is printed; a table has an analysis only.
struct Answer {
  Analysis analysis;
  std::string title;
  bool has_trials = false;
  std::string widened;  ///< Spaces that should be searched, as TOML.
  std::vector<std::string> warnings;
};

Answer answer_table(const FitQuery& query) {
  if (query.goal) fail(ErrorCode::kBadInput, "--goal is for a study's folder; ", query.path, " is a table of steps");
  const std::vector<study::StepsPoint> points = study::read_steps_table(query.path);
  std::set<double> sizes;
  for (const study::StepsPoint& point : points) sizes.insert(point.batch_size);
  check_reference_batch(query.reference_batch, sizes);
  // Throws what is wrong with a table that cannot be fitted.
  study::fit_law(query.law.value_or(study::Law::kHyperbola), points, query.reference_batch);
  return {.analysis = study::analyse_table(points, query.reference_batch), .title = query.path};
}

Answer answer_study(const FitQuery& query) {
  const study::StudyData data = study::read_study_for_goal(query.path, query.goal);
  if (!query.goal && data.goals.empty())
    fail(ErrorCode::kBadInput, query.path, " says no goal (an archive has none): give --goal, such as --goal 'val_error<0.1'");
  const study::GoalSpec goal = query.goal ? *query.goal : data.goals.front();
  std::set<double> sizes;
  for (const study::BatchStudy& batch : data.batches) sizes.insert(static_cast<double>(batch.batch_size));
  check_reference_batch(query.reference_batch, sizes);
  Answer answer = {.analysis = study::analyse(data, goal, {.reference_batch = query.reference_batch}), .has_trials = true};
  answer.title = concat(query.path, ": ", data.dataset, ", ", data.model, ", ", data.optimizer, ", to ", goal.text());
  answer.widened = study::widened_search_text(data, goal, answer.analysis.steps);
  answer.warnings = data.warnings;
  if (query.law) study::fit_law(*query.law, study::points_of(answer.analysis.steps), query.reference_batch);
  return answer;
}

// --json ------------------------------------------------------------------------------------------------------------------------------

Json optional_json(const std::optional<double>& value) { return value ? number_json(*value) : Json(nullptr); }

void print_json(const Analysis& analysis) {
  for (const Fit& fit : analysis.fits) {
    Json parameters = Json::object();
    for (const auto& [name, value] : fit.parameters) parameters[name] = number_json(value);
    Json interval = nullptr;
    if (fit.interval) interval = Json::array({number_json(fit.interval->first), number_json(fit.interval->second)});
    print_line(Json{{"event", "fit"},
                    {"law", study::name_of(fit.law)},
                    {"parameters", std::move(parameters)},
                    {"critical_batch_size", number_json(fit.critical_batch_size)},
                    {"rms_log", fit.rms_log},
                    {"interval", std::move(interval)}});
  }
  print_line(Json{{"event", "regimes"},
                  {"perfect_to", optional_json(analysis.regimes.perfect_to)},
                  {"diminishing_to", optional_json(analysis.regimes.flat_from)},
                  {"flags", analysis.regimes.flags}});
}

// For people --------------------------------------------------------------------------------------------------------------------------

std::string number_text(double value) {
  if (std::isinf(value)) return "no bound";
  char text[64];
  const bool is_whole = value == std::round(value) || std::abs(value) >= 1000;
  std::snprintf(text, sizeof text, is_whole && std::abs(value) < 1e15 ? "%.0f" : "%.4g", value);
  return text;
}

std::string interval_text(const Interval& interval) {
  return interval ? number_text(interval->first) + " to " + number_text(interval->second) : "-";
}

void print_steps(const Answer& answer) {
  const bool has_trials = answer.has_trials;
  std::printf("%10s  %11s%s\n", "batch size", "steps", has_trials ? "      95 % interval   trial      reached  diverged" : "");
  for (const study::StepsToResult& row : answer.analysis.steps) {
    std::printf("%10lld  %11s", static_cast<long long>(row.batch_size), row.steps ? std::to_string(*row.steps).c_str() : "not reached");
    if (has_trials) {
      const Interval interval = row.low ? Interval({*row.low, *row.high}) : std::nullopt;
      const std::string reached = concat(row.num_reached, " of ", row.num_kept);
      std::printf("  %17s  %6s  %11s  %8lld", interval_text(interval).c_str(), row.steps ? std::to_string(row.trial_id).c_str() : "-",
                  reached.c_str(), static_cast<long long>(row.num_infeasible));
    }
    std::printf("\n");
  }
}

void print_fits(const Analysis& analysis) {
  std::printf("\n%-10s  %19s  %21s  %7s  parameters\n", "law", "critical batch size", "95 % interval", "rms log");
  for (const Fit& fit : analysis.fits) {
    std::vector<std::string> parameters;
    for (size_t i = 0; i < fit.parameters.size(); ++i) {
      const Interval interval = fit.parameter_intervals.empty() ? Interval{} : fit.parameter_intervals[i];
      parameters.push_back(concat(fit.parameters[i].first, " = ", number_text(fit.parameters[i].second),
                                  interval ? " (" + interval_text(interval) + ")" : ""));
    }
    std::printf("%-10s  %19s  %21s  %7.4f  %s\n", study::name_of(fit.law), number_text(fit.critical_batch_size).c_str(),
                interval_text(fit.interval).c_str(), fit.rms_log, join(parameters, ", ").c_str());
    if (!fit.note.empty()) std::printf("%12s%s\n", "", fit.note.c_str());
  }
}

void print_residuals(const Analysis& analysis) {
  if (analysis.fits.empty()) return;
  std::printf("\nmeasured above fitted, %%\n%10s", "batch size");
  for (const Fit& fit : analysis.fits) std::printf("  %10s", study::name_of(fit.law));
  std::printf("\n");
  for (const study::StepsToResult& row : analysis.steps) {
    if (!row.steps || *row.steps == 0) continue;
    std::printf("%10lld", static_cast<long long>(row.batch_size));
    for (const Fit& fit : analysis.fits)
      std::printf("  %+10.1f", 100 * (static_cast<double>(*row.steps) / fit.steps_at(static_cast<double>(row.batch_size)) - 1));
    std::printf("\n");
  }
}

/// " (95 %: 32 to 128)"; an infinite end is a regime that some resamples never reach.
std::string bounds_text(const Interval& interval) {
  if (!interval) return "";
  const auto end = [](double value) { return std::isinf(value) ? std::string("not reached") : number_text(value); };
  return concat(" (95 %: ", end(interval->first), " to ", end(interval->second), ")");
}

void print_regimes(const Analysis& analysis) {
  const Regimes& regimes = analysis.regimes;
  std::printf("\nregimes\n");
  if (regimes.refused) {
    std::printf("  none is named: the checks marked 'refused' speak against it\n");
    return;
  }
  double largest = 0;
  for (const study::StepsToResult& row : analysis.steps)
    if (row.steps) largest = static_cast<double>(row.batch_size);
  const bool is_left = regimes.perfect_to && *regimes.perfect_to < largest;
  std::printf("  perfect scaling to %s%s%s\n", regimes.perfect_to ? number_text(*regimes.perfect_to).c_str() : "-",
              is_left ? "" : ", the largest batch size: not left", bounds_text(regimes.perfect_interval).c_str());
  std::printf("    rule: the largest batch size B with B x steps at most 1.25 times that of the smallest\n");
  if (regimes.flat_from)
    std::printf("  no further gain from %s%s\n", number_text(*regimes.flat_from).c_str(), bounds_text(regimes.flat_interval).c_str());
  else
    std::printf("  no further gain: not reached, steps still fall at the largest batch size%s\n",
                bounds_text(regimes.flat_interval).c_str());
  std::printf("    rule: the smallest batch size with steps at most 1.2 times the least of all\n");
}

void print_checks(const Answer& answer) {
  std::printf("\nchecks\n");
  if (answer.analysis.checks.empty()) std::printf("  none speaks against this result\n");
  for (const study::Flag& flag : answer.analysis.checks)
    std::printf("  %s (%s): %s\n    %s\n", flag.rule.c_str(), flag.refuses ? "refused" : "look", flag.evidence.c_str(),
                flag.advice.c_str());
  if (!answer.widened.empty())
    std::printf(
        "\nwider spaces, for a copy of the spec (bounds move by a decade or half of a linear width, lists get two more values):\n%s",
        answer.widened.c_str());
}

void print_text(const Answer& answer) {
  std::printf("%s\n\n", answer.title.c_str());
  print_steps(answer);
  print_fits(answer.analysis);
  print_residuals(answer.analysis);
  print_regimes(answer.analysis);
  print_checks(answer);
}

}  // namespace

int study_fit(const Arguments& arguments) {
  const FitQuery query = read_query(arguments);
  Answer answer = std::filesystem::is_directory(query.path) ? answer_study(query) : answer_table(query);
  if (query.law) std::erase_if(answer.analysis.fits, [&](const Fit& fit) { return fit.law != *query.law; });
  print_warnings(answer.warnings, arguments.options.contains("json"));
  arguments.options.contains("json") ? print_json(answer.analysis) : print_text(answer);
  return 0;
}

}  // namespace cohort
