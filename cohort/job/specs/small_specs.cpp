#include "cohort/job/specs/small_specs.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"

namespace cohort {

Precision parse_precision(const std::string& name) {
  for (const Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kFp16})
    if (name == name_of(precision)) return precision;
  fail(ErrorCode::kBadInput, "precision '", name, "' is not known; use fp32, bf16 or fp16");
}

const char* name_of(Precision precision) {
  switch (precision) {
    case Precision::kBf16:
      return "bf16";
    case Precision::kFp16:
      return "fp16";
    default:
      return "fp32";
  }
}

std::optional<QuantiseAware> parse_quantise_aware(const std::string& text) {
  constexpr int64_t kDefaultGroup = 64, kLargestGroup = 1'000'000;
  if (text.empty() || text == "none") return {};
  if (text == "8") return QuantiseAware{.bits = 8, .group = 0};
  if (text == "4") return QuantiseAware{.bits = 4, .group = kDefaultGroup};
  const auto group = text.starts_with("4:") ? parse_integer(text.substr(2), 1, kLargestGroup) : std::nullopt;
  if (!group)
    fail(ErrorCode::kBadInput, name_settings("--quantize-aware "), quote_text(text),
         ": expected 8 (int8 weights and inputs), 4 or 4:GROUP (weights in 4 bits, GROUP of a row with one scale, as 4:64), or none");
  return QuantiseAware{.bits = 4, .group = *group};
}

namespace {

/// A name of a compression, and the number behind its colon where it takes one.
struct CompressionForm {
  const char *name, *argument, *allowed;
  bool (*allows)(double);
};
constexpr CompressionForm kCompressions[] = {
    {"none", "", "", nullptr},
    {"fp16", "", "", nullptr},
    {"bf16", "", "", nullptr},
    {"int8", "", "", nullptr},
    {"topk", ":F", "the fraction of the elements that is sent, 0 < F <= 1, e.g. topk:0.01",
     [](double value) { return value > 0 && value <= 1; }},
    {"powersgd", ":R", "the rank of the approximation, a whole number from 1 to 1024, e.g. powersgd:4",
     [](double value) { return value >= 1 && value <= 1024 && value == static_cast<double>(static_cast<int64_t>(value)); }}};

}  // namespace

Compression parse_compression(const std::string& spec) {
  const auto [name, number] = split_once(spec, ':');
  std::vector<std::string> names, forms;
  for (const CompressionForm& row : kCompressions) {
    names.emplace_back(row.name);
    forms.push_back(concat(row.name, row.argument));
    if (row.name != name) continue;
    if (!row.allows && number) fail(ErrorCode::kBadInput, "compress=", printable(spec), ": ", name, " takes no number; write ", name);
    if (!row.allows) return {.name = name};
    const auto argument = number ? parse_number(*number) : std::nullopt;
    if (!argument || !row.allows(*argument))
      fail(ErrorCode::kBadInput, "compress=", printable(spec), ": ", row.argument + 1, " in ", forms.back(), " is ", row.allowed);
    return {.name = name, .argument = *argument};
  }
  fail(ErrorCode::kBadInput, "compress=", printable(spec), ": no such compression", name.size() > 64 ? "" : did_you_mean(name, names),
       "; one of ", join(forms, ", "));
}

Goal parse_goal(const std::string& text, const std::string& more) {
  const auto refuse = [&](const auto&... why) { fail(ErrorCode::kBadInput, name_settings("--goal '"), text, "': ", why...); };
  std::vector<std::string> metrics = {"val_error", "val_loss", "val_precision", "loss"};
  for (const std::string& name : split(more, ','))
    if (!trim(name).empty()) metrics.push_back(trim(name));
  const size_t at = text.find_first_of("<>");
  if (at == std::string::npos) refuse("expected METRIC<VALUE, for example val_error<0.12");
  Goal goal{trim(text.substr(0, at)), text[at] == '<', 0};
  if (std::find(metrics.begin(), metrics.end(), goal.metric) == metrics.end())
    refuse("unknown metric '", goal.metric, "'; metrics: ", join(metrics, " "), name_settings("; --metrics adds others"));
  const std::string number = trim(text.substr(at + 1));
  const auto value = parse_number(number);
  if (!value) refuse("'", number, "' is not a number");
  goal.value = *value;
  if (goal.metric == "val_error" && (goal.below ? goal.value <= 0 : goal.value < 0))
    refuse("no error is below 0, so this is ", goal.below ? "never" : "always", " so; an error is a fraction, as in val_error<0.12");
  if (goal.metric == "val_precision" && goal.below) refuse("higher is better for a precision; use val_precision>", goal.value);
  if (goal.metric == "val_precision" && (goal.value < 0 || goal.value >= 1))
    refuse("a precision is a share from 0 to 1, so this is ", goal.value < 0 ? "always" : "never",
           " so; use a value such as val_precision>0.31");
  return goal;
}

bool Goal::reached(const std::map<std::string, double>& metrics) const {
  const auto found = metrics.find(metric);
  return found != metrics.end() && (below ? found->second < value : found->second > value);
}

std::vector<HintPair> parse_hints(const std::string& text) {
  std::vector<HintPair> pairs;
  if (text.empty() || text == "none") return pairs;
  for (const std::string& part : split(text, ',')) {
    const auto [student, teacher] = split_once(part, ':');
    HintPair pair{.student = student, .teacher = teacher.value_or("")};
    if (pair.student.empty() || pair.teacher.empty() || pair.teacher.find(':') != std::string::npos)
      fail(ErrorCode::kBadInput, name_settings("--hint "), quote_text(text),
           ": expected a layer of the student and one of the teacher, as conv2:conv2, several with commas, or none");
    if (std::any_of(pairs.begin(), pairs.end(), [&](const HintPair& other) { return other.student == pair.student; }))
      fail(ErrorCode::kBadInput, name_settings("--hint "), quote_text(text), ": it names the student's layer ", quote_text(pair.student),
           " twice");
    pairs.push_back(std::move(pair));
  }
  return pairs;
}

double parse_remedy(const std::string& text) {
  constexpr double kLeastFactor = 1e-9;
  if (text.empty()) return 1;
  const auto [name, number] = split_once(text, ':');
  if (name != "rate") fail(ErrorCode::kBadInput, name_settings("--remedy "), text, ": no remedy '", name, "'; there is rate:FACTOR");
  const auto factor = number ? parse_number(*number, kLeastFactor, 1) : std::nullopt;
  if (!factor)
    fail(ErrorCode::kBadInput, name_settings("--remedy "), text, ": expected rate:FACTOR with FACTOR from ", kLeastFactor, " to 1");
  return *factor;
}

}  // namespace cohort
