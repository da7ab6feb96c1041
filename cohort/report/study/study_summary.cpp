#include "cohort/report/study/study_summary.h"

#include <algorithm>
#include <cmath>

#include "cohort/base/text/text.h"
#include "cohort/report/draw/format.h"
#include "cohort/report/draw/page.h"
#include "cohort/report/study/study_figures.h"
#include "cohort/study/analysis/self_checks.h"
#include "cohort/study/analysis/steps_to_result.h"

namespace cohort::report {
namespace {

using study::Fit;
using study::Law;
using study::Regimes;
using study::StepsToResult;

std::string number(double value) { return plain_number(value, 3); }
std::string interval(const std::optional<std::pair<double, double>>& range) {
  if (!range) return "";
  const std::string high = std::isfinite(range->second) ? number(range->second) : "no end";
  return " (95 %: " + number(range->first) + " to " + high + ")";
}

const char* formula(Law law) {
  if (law == Law::kHyperbola) return "S = Smin (1 + Bc / B)";
  return law == Law::kKnee ? "S = Smin (1 + (Bc / B)^e)^(1/e)" : "log S = log(a + b / B)";
}

std::string capitalised(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

std::string fit_sentence(const Fit& fit) {
  std::vector<std::string> parts;
  bool says_critical = false;
  for (size_t i = 0; i < fit.parameters.size(); ++i) {
    const auto& [name, value] = fit.parameters[i];
    says_critical |= name == "Bc";
    const bool has_interval = i < fit.parameter_intervals.size();
    parts.push_back(name + " " + number(value) + (has_interval ? interval(fit.parameter_intervals[i]) : ""));
  }
  std::string out = capitalised(study::name_of(fit.law)) + ", " + formula(fit.law) + ": " + join(parts, ", ");
  if (!says_critical && fit.critical_batch_size > 0)
    out += "; steps are 20 % above linear scaling at batch size " + number(fit.critical_batch_size) + interval(fit.interval);
  out += "; rms of log S " + number(fit.rms_log) + ".";
  if (!fit.note.empty()) out += " Note: " + fit.note + ".";
  return out;
}

std::string comparison(const std::vector<Fit>& fits) {
  const Fit *hyperbola = nullptr, *knee = nullptr;
  for (const Fit& fit : fits) {
    if (fit.law == Law::kHyperbola) hyperbola = &fit;
    if (fit.law == Law::kKnee) knee = &fit;
  }
  if (hyperbola == nullptr || knee == nullptr) return "";
  const std::string numbers = "(rms " + number(knee->rms_log) + " against " + number(hyperbola->rms_log) + ")";
  if (knee->rms_log < 0.75 * hyperbola->rms_log)
    return "The law with a knee exponent fits better " + numbers + ": the two-parameter hyperbola misses how sharply the curve bends.";
  return "A knee exponent hardly improves the fit " + numbers + ": the two-parameter hyperbola is enough.";
}

void add_regimes(const study::Analysis& analysis, std::vector<std::string>& out) {
  const Regimes& regimes = analysis.regimes;
  if (regimes.refused) {
    out.push_back("No regime is named, because the evidence does not support one. The objections, with advice, are listed below.");
    return;
  }
  double largest = 0;
  for (const StepsToResult& result : analysis.steps) {
    if (result.steps) largest = static_cast<double>(result.batch_size);
  }
  const char* perfect_rule = " (rule: the largest B with B S(B) at most 1.25 times that of the smallest).";
  const char* flat_rule = " (rule: the smallest B with S(B) at most 1.2 times the least).";
  if (regimes.perfect_to) {
    const bool never_left = *regimes.perfect_to >= largest;
    out.push_back("Perfect scaling (twice the batch, half the steps) to batch size " + number(*regimes.perfect_to) +
                  interval(regimes.perfect_interval) + (never_left ? ", the largest studied: its end is not reached" : "") + perfect_rule);
  }
  if (regimes.flat_from)
    out.push_back("A larger batch brings nothing from batch size " + number(*regimes.flat_from) + interval(regimes.flat_interval) + " on" +
                  flat_rule);
  else if (regimes.perfect_to)
    out.push_back("Where a larger batch brings nothing is not reached: steps still fall at the largest batch size" +
                  std::string(flat_rule));
}

}  // namespace

std::vector<std::string> summary_sentences(const StudyData& study, const StudyReport& report, bool goal_is_automatic) {
  std::vector<std::string> out;
  if (study.batches.empty() || !report.has_goal) {
    out.emplace_back(study.batches.empty() ? "This study has no batch size yet."
                                           : "This study has no measurement of a trial that counts yet.");
    return out;
  }
  const study::Analysis& analysis = report.analysis;
  const auto num_reached =
      std::count_if(analysis.steps.begin(), analysis.steps.end(), [](const auto& result) { return result.steps.has_value(); });
  out.push_back("Goal: " + analysis.goal.text() +
                (goal_is_automatic ? ", chosen because the study names none: the hardest that five trials of every batch size reach" : "") +
                ". " + count_text(num_reached) + " of " + plural(static_cast<int64_t>(analysis.steps.size()), "batch size") +
                " reached it.");
  if (num_reached == 0) {
    out.emplace_back("Without a batch size that reached the goal there is no curve: ask for an easier goal, or give trials more steps.");
    return out;
  }
  add_regimes(analysis, out);
  for (const Fit& fit : analysis.fits) out.push_back(fit_sentence(fit));
  if (analysis.fits.empty()) out.emplace_back("No law was fitted: there are too few batch sizes with a result.");
  if (std::string sentence = comparison(analysis.fits); !sentence.empty()) out.push_back(std::move(sentence));
  return out;
}

std::string flags_section(const StudyData& study, const StudyReport& report) {
  if (report.flags.empty()) return report.has_goal ? "<p>None of the self-checks found anything.</p>\n" : "";
  std::vector<const study::Flag*> flags;
  for (const study::Flag& flag : report.flags) flags.push_back(&flag);
  std::stable_sort(flags.begin(), flags.end(), [](const auto* a, const auto* b) { return a->refuses > b->refuses; });
  std::string out;
  for (const study::Flag* flag : flags) {
    out += "<li>" + std::string(flag->refuses ? "<strong>No regime can be named:</strong> " : "") +
           escape_html(flag->refuses ? flag->evidence : capitalised(flag->evidence)) + ". <em>" + escape_html(capitalised(flag->advice)) +
           ".</em></li>\n";
  }
  out = "<ul>\n" + out + "</ul>\n";
  if (const std::string text = study::widened_search_text(study, report.analysis.goal, report.analysis.steps); !text.empty())
    out += "<h3>Wider spaces for the spec</h3>\n<pre tabindex=\"0\">" + escape_html(text) + "</pre>\n";
  return out;
}

std::string steps_table(const StudyData& study, const StudyReport& report) {
  Table out;
  out.columns = {{"Batch size", true},      {"Steps", true}, {"95 % interval", true}, {"Resolution", true}, {"Trial", true},
                 {"Its parameters", false}, {"Kept", true},  {"Reached", true},       {"Infeasible", true}};
  for (const StepsToResult& result : report.analysis.steps) {
    const BatchStudy* batch = find_batch(study, result.batch_size);
    const Trial* trial = batch == nullptr || !result.steps ? nullptr : find_trial(*batch, result.trial_id);
    const std::string none = "\u2013";
    std::string steps = none, range = none, resolution = none;
    if (result.steps) {
      steps = count_text(result.steps) + (result.num_unknown > 0 ? " or fewer" : "");
      resolution = "\u00b1 " + significant(static_cast<double>(*result.steps - result.step_before) / 2, 3);
    }
    if (result.low && result.high) range = plain_number(*result.low, 4) + " to " + plain_number(*result.high, 4);
    out.rows.push_back(
        {count_text(result.batch_size), steps, range, resolution, trial == nullptr ? none : count_text(result.trial_id),
         "<span class=\"names\">" + escape_html(trial == nullptr ? none : study::parameters_text(trial->parameters)) + "</span>",
         count_text(result.num_kept), count_text(result.num_reached), count_text(result.num_infeasible)});
  }
  return out.rows.empty() ? "" : table(out, "Steps to the goal at each batch size");
}

std::vector<std::string> work_sentences(const StudyData& study) {
  int64_t num_trials = 0, num_infeasible = 0, num_measurements = 0, num_shortened = 0;
  double steps = 0, samples = 0, saved_steps = 0, saved_samples = 0, seconds = 0;
  for (const BatchStudy& batch : study.batches) {
    const auto size = static_cast<double>(batch.batch_size);
    for (const Trial& trial : batch.trials) {
      ++num_trials;
      num_infeasible += trial.status == study::TrialStatus::kInfeasible;
      num_measurements += study::num_measurements(trial);
      steps += static_cast<double>(trial.steps);
      samples += static_cast<double>(trial.steps) * size;
      seconds += trial.seconds;
      const bool ended_well = trial.status == study::TrialStatus::kCensored || trial.status == study::TrialStatus::kComplete;
      if (!ended_well || trial.steps >= batch.train_steps) continue;
      ++num_shortened;
      saved_steps += static_cast<double>(batch.train_steps - trial.steps);
      saved_samples += static_cast<double>(batch.train_steps - trial.steps) * size;
    }
  }
  std::vector<std::string> out;
  out.push_back(plural(num_trials, "trial") + " (" + count_text(num_infeasible) + " diverged) at " +
                plural(static_cast<int64_t>(study.batches.size()), "batch size") + ", " + plural(num_measurements, "measurement") + ", " +
                plain_number(steps, 4) + " training steps on " + plain_number(samples, 3) + " samples" +
                (seconds > 0 ? ", " + seconds_text(seconds) + " of computing" : "") + ".");
  if (num_shortened > 0)
    out.push_back(plural(num_shortened, "trial") +
                  " stopped before the budget, where they could no longer matter for the goal: " + plain_number(saved_steps, 4) +
                  " steps on " + plain_number(saved_samples, 3) + " samples less than whole budgets, which would have been " +
                  significant((samples + saved_samples) / samples, 3) + " times as many samples.");
  return out;
}

std::vector<std::string> noise_sentences(const std::vector<NoiseScaleNote>& notes, const study::Analysis& analysis) {
  std::vector<std::string> out;
  double critical = std::nan("");
  for (const Fit& fit : analysis.fits) {
    if (fit.law == Law::kHyperbola) critical = fit.critical_batch_size;
  }
  for (const NoiseScaleNote& note : notes) {
    std::string text = "Gradient noise scale " + number(note.noise_scale);
    if (note.step > 0) text += " at step " + count_text(note.step);
    if (note.loss) text += " (loss " + number(*note.loss) + ")";
    if (std::isfinite(critical) && critical > 0)
      text += ": " + number(note.noise_scale / critical) + " times the fitted critical batch size";
    out.push_back(text + ".");
  }
  if (!out.empty())
    out.emplace_back(
        "The noise scale is known to miss the critical batch size by factors of ten in either direction; it is only an indication.");
  return out;
}

const study::WorthRow* best_worth(const study::Worth& worth) {
  for (const study::WorthRow& row : worth.rows)
    if (row.num_workers == worth.num_worth_having) return &row;
  return worth.rows.empty() ? nullptr : &worth.rows.front();
}

std::string worth_text(const StudyReport& report) {
  const study::Worth& worth = report.worth;
  if (worth.rows.empty()) return "";
  Table out;
  out.columns = {{"Workers", true},     {"Best batch size", true}, {"Steps", true},    {"A step", true},
                 {"To the goal", true}, {"Interval", true},        {"Speed-up", true}, {"The next number saves", true}};
  for (const study::WorthRow& row : worth.rows) {
    const bool is_last = &row == &worth.rows.back();
    out.rows.push_back({count_text(row.num_workers), count_text(row.best.batch_size), plain_number(row.best.steps),
                        milliseconds_text(row.best.step_seconds), seconds_text(row.best.seconds),
                        seconds_text(row.best.seconds_low) + " to " +
                            (std::isfinite(row.best.seconds_high) ? seconds_text(row.best.seconds_high) : std::string("no end")),
                        significant(row.speed_up, 3),
                        is_last             ? "\u2013"
                        : row.next_gain > 0 ? percent_text(row.next_gain, 0)
                                            : "nothing, it is slower"});
  }
  const study::WorthRow* const best = best_worth(worth);
  std::string sentence = plural(worth.num_worth_having, "worker") + (worth.num_worth_having == 1 ? " is" : " are") +
                         " worth having on this machine, with batch size " + count_text(best->best.batch_size) + ": " +
                         seconds_text(best->best.seconds) + " to " + report.analysis.goal.text();
  if (best != &worth.rows.front())
    sentence += ", " + significant(best->speed_up, 3) + " times as fast as " + plural(worth.rows.front().num_workers, "worker");
  return "<p>" + escape_html(sentence) + ".</p>\n" + table(out, "How many workers are worth having");
}

}  // namespace cohort::report
