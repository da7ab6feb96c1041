#include "cohort/study/spec/data.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort::study {
namespace {

constexpr std::array<const char*, kNumMetrics> kMetricNames = {
    "train_loss", "train_error", "train_precision", "val_loss", "val_error", "val_precision", "test_loss", "test_error", "test_precision"};
constexpr std::array<const char*, 4> kStatusNames = {"COMPLETE", "CENSORED", "INFEASIBLE", "INCOMPLETE"};

bool is_loss(Metric metric) { return metric == kTrainLoss || metric == kValLoss || metric == kTestLoss; }

}  // namespace

const char* name_of(TrialStatus status) { return kStatusNames.at(static_cast<size_t>(status)); }

TrialStatus parse_trial_status(const std::string& name) {
  std::string upper = name;
  for (char& character : upper) character = static_cast<char>(std::toupper(static_cast<unsigned char>(character)));
  const std::vector<std::string> names(kStatusNames.begin(), kStatusNames.end());
  const auto at = std::find(names.begin(), names.end(), upper);
  if (at != names.end()) return static_cast<TrialStatus>(at - names.begin());
  fail(ErrorCode::kBadInput, "'", printable(name), "' is not a trial status; expected one of: ", join(names, " "));
}

const char* name_of(Metric metric) { return kMetricNames.at(metric); }

bool higher_is_better(Metric metric) { return metric == kTrainPrecision || metric == kValPrecision || metric == kTestPrecision; }

bool is_better(double value, double other, Metric metric) { return higher_is_better(metric) ? value > other : value < other; }

bool GoalSpec::reached(const Measurement& measurement) const { return is_better(measurement.values.at(metric), value, metric); }

std::string GoalSpec::text() const { return concat(name_of(metric), higher_is_better(metric) ? '>' : '<', number_text(value)); }

GoalSpec parse_goal_spec(const std::string& text) {
  const std::string shown = printable(text);
  const size_t sign = text.find_first_of("<>");
  if (sign == std::string::npos)
    fail(ErrorCode::kBadInput, "goal '", shown, "' is not METRIC<VALUE or METRIC>VALUE, such as val_error<0.12 or val_precision>0.31");
  const std::string name = trim(text.substr(0, sign));
  const std::vector<std::string> names(kMetricNames.begin(), kMetricNames.end());
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    fail(ErrorCode::kBadInput, "goal '", shown, "': unknown metric '", printable(name), "'", did_you_mean(name, names),
         "; metrics: ", join(names, " "));
  const auto value = parse_number(trim(text.substr(sign + 1)));
  if (!value) fail(ErrorCode::kBadInput, "goal '", shown, "': what follows '", text[sign], "' is not a finite number");
  const GoalSpec goal{static_cast<Metric>(found - names.begin()), *value};
  const char wanted = higher_is_better(goal.metric) ? '>' : '<';
  if (text[sign] != wanted)
    fail(ErrorCode::kBadInput, "goal '", shown, "': ", wanted == '<' ? "lower" : "higher", " is better for ", name, ": write ",
         goal.text());
  if (!is_loss(goal.metric) && (*value < 0 || *value > 1))
    fail(ErrorCode::kBadInput, "goal '", shown, "': ", name, " is a share from 0 to 1");
  return goal;
}

const BatchStudy* find_batch(const StudyData& study, int64_t batch_size) {
  for (const BatchStudy& batch : study.batches)
    if (batch.batch_size == batch_size) return &batch;
  return nullptr;
}

const Trial* find_trial(const BatchStudy& batch, int64_t id) {
  for (const Trial& trial : batch.trials)
    if (trial.id == id) return &trial;
  return nullptr;
}

std::string number_text(double value) {
  char text[32];  // The longest shortest form of a double has 24 characters.
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return {text, end};
}

std::string parameters_text(const Parameters& parameters) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : parameters) {
    char number[32];
    std::snprintf(number, sizeof number, "%.4g", value);
    parts.push_back(name + " " + number);
  }
  return join(parts, ", ");
}

}  // namespace cohort::study
