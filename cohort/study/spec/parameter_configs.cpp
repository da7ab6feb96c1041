// Search spaces and points as JSON in the format of the public archive, and the translation of its names to ours.
#include "cohort/study/spec/parameter_configs.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>
#include <span>

#include "cohort/base/fail.h"
#include "cohort/base/text/json_fields.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"

namespace cohort::study {
namespace {

using Type = Hyperparameter::Type;
using Scale = Hyperparameter::Scale;
constexpr size_t kMaxChoices = 100'000;
constexpr double kExactIntegers = 9007199254740992.0;  // 2^53: beyond it doubles do not represent every whole number.

const char* archive_name(Type type) { return type == Type::kDouble ? "DOUBLE" : type == Type::kInteger ? "INTEGER" : "DISCRETE"; }

const char* archive_name(Scale scale) {
  return scale == Scale::kLinear ? "LINEAR_SCALE" : scale == Scale::kLog ? "LOG_SCALE" : "REVERSE_LOG_SCALE";
}

Json number_json(double value, bool is_integer) {
  if (is_integer && value == std::floor(value) && std::abs(value) <= kExactIntegers) return static_cast<int64_t>(value);
  return value;
}

/// The text in upper case without the prefix UNIT_; "" where it is missing or null.
std::string enum_text(const Json& json, const std::string& where, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return "";
  if (!found->is_string()) fail(ErrorCode::kBadInput, where, ": \"", key, "\" is not a string");
  std::string text = found->get<std::string>();
  for (char& character : text) character = static_cast<char>(std::toupper(static_cast<unsigned char>(character)));
  if (text.starts_with("UNIT_")) text.erase(0, 5);
  return text;
}

/// A choice that is a number or represents one.
std::optional<double> choice_number(const Json& json) {
  if (json.is_boolean()) return json.get<bool>() ? 1.0 : 0.0;
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return parse_number(json.get_ref<const std::string&>());
  return std::nullopt;
}

void read_choices(const Json& json, const std::string& where, bool is_categorical, Hyperparameter& parameter,
                  std::vector<std::string>& categories) {
  const auto points = json.find("feasible_points");
  if (points == json.end() || !points->is_array() || points->empty())
    fail(ErrorCode::kBadInput, where, ": \"feasible_points\" is not a list of at least one choice");
  if (points->size() > kMaxChoices) fail(ErrorCode::kBadInput, where, ": ", points->size(), " choices; at most ", kMaxChoices);
  const bool has_numbers = std::all_of(points->begin(), points->end(), [](const Json& point) { return choice_number(point).has_value(); });
  for (const Json& point : *points) {
    if (has_numbers) {
      parameter.values.push_back(*choice_number(point));
    } else if (is_categorical && point.is_string()) {
      parameter.values.push_back(static_cast<double>(categories.size()));
      categories.push_back(point.get<std::string>());
    } else {
      fail(ErrorCode::kBadInput, where, ": \"feasible_points\" holds something that is not a number");
    }
  }
}

Hyperparameter read_config(const std::string& name, const Json& json, const std::string& where, std::vector<std::string>& categories) {
  const JsonFields fields(json, where);
  Hyperparameter parameter;
  parameter.name = our_parameter(name);
  const std::string type = enum_text(json, where, "type");
  if (type == "DISCRETE" || type == "CATEGORICAL") {
    parameter.type = Type::kDiscrete;
    read_choices(json, where, type == "CATEGORICAL", parameter, categories);
    return parameter;
  }
  if (type != "DOUBLE" && type != "INTEGER")
    fail(ErrorCode::kBadInput, where, ": \"type\" is ", quote_text(type), ", not DOUBLE, INTEGER, DISCRETE or CATEGORICAL");
  parameter.type = type == "DOUBLE" ? Type::kDouble : Type::kInteger;
  const std::string scale = enum_text(json, where, "scale");
  if (scale == "LOG_SCALE" || scale == "LOG") parameter.scale = Scale::kLog;
  else if (scale == "REVERSE_LOG_SCALE" || scale == "REVERSE_LOG") parameter.scale = Scale::kReverseLog;
  else if (!scale.empty() && scale != "LINEAR_SCALE" && scale != "LINEAR")
    fail(ErrorCode::kBadInput, where, ": \"scale\" is ", quote_text(scale), ", not LINEAR_SCALE, LOG_SCALE or REVERSE_LOG_SCALE");
  parameter.minimum = fields.number("min_value");
  parameter.maximum = fields.number("max_value");
  if (parameter.minimum > parameter.maximum) fail(ErrorCode::kBadInput, where, ": \"min_value\" is above \"max_value\"");
  return parameter;
}

}  // namespace

Json to_json(const SearchSpace& space) {
  Json json = Json::object();
  for (const Hyperparameter& parameter : space) {
    const bool is_integer = parameter.type == Type::kInteger;
    Json config;
    if (parameter.type == Type::kDiscrete) {
      config["feasible_points"] = parameter.values;
    } else {
      config["max_value"] = number_json(parameter.maximum, is_integer);
      config["min_value"] = number_json(parameter.minimum, is_integer);
      config["scale"] = archive_name(parameter.scale);
    }
    config["type"] = archive_name(parameter.type);
    json[archive_parameter(parameter.name)] = std::move(config);
  }
  return json;
}

ParameterConfigs parse_parameter_configs(const Json& json, const std::string& where) {
  if (!json.is_object()) fail(ErrorCode::kBadInput, where, ": \"parameter_configs\" is not an object");
  ParameterConfigs configs;
  for (const auto& [name, config] : json.items()) {
    std::vector<std::string> categories;
    configs.space.push_back(read_config(name, config, concat(where, ": ", quote_text(name)), categories));
    if (!categories.empty()) configs.categories[configs.space.back().name] = std::move(categories);
  }
  return configs;
}

Json to_json(const Parameters& parameters, const SearchSpace& space) {
  Json json = Json::object();
  for (const auto& [name, value] : parameters) {
    const auto found = std::find_if(space.begin(), space.end(), [&](const Hyperparameter& parameter) { return parameter.name == name; });
    json[archive_parameter(name)] = number_json(value, found != space.end() && found->type == Type::kInteger);
  }
  return json;
}

Parameters parse_parameters(const Json& json, const ParameterConfigs& configs, const std::string& where) {
  if (!json.is_object()) fail(ErrorCode::kBadInput, where, ": \"parameters\" is not an object");
  Parameters parameters;
  for (const auto& [theirs, value] : json.items()) {
    const std::string name = our_parameter(theirs);
    const auto categories = configs.categories.find(name);
    std::optional<double> number;
    if (categories == configs.categories.end()) {
      number = choice_number(value);
    } else if (value.is_string()) {
      const auto& known = categories->second;
      const auto found = std::find(known.begin(), known.end(), value.get_ref<const std::string&>());
      if (found != known.end()) number = static_cast<double>(found - known.begin());
    }
    if (!number || !std::isfinite(*number))
      fail(ErrorCode::kBadInput, where, ": the value of ", quote_text(theirs), " is neither a finite number nor a known choice");
    parameters[name] = *number;
  }
  return parameters;
}

namespace {

struct Pair {
  const char *theirs, *ours;
};
constexpr Pair kParameters[] = {{"learning_rate_decay_steps", "decay_steps"}, {"end_learning_rate_factor", "end_factor"}};
constexpr Pair kOptimizers[] = {{"nesterov_momentum", "nesterov"}};

std::string translated(const std::string& name, std::span<const Pair> pairs, const char* Pair::* from, const char* Pair::* to) {
  for (const Pair& pair : pairs)
    if (name == pair.*from) return pair.*to;
  return name;
}

}  // namespace

std::string archive_parameter(const std::string& ours) { return translated(ours, kParameters, &Pair::ours, &Pair::theirs); }
std::string our_parameter(const std::string& theirs) { return translated(theirs, kParameters, &Pair::theirs, &Pair::ours); }
std::string archive_optimizer(const std::string& ours) { return translated(ours, kOptimizers, &Pair::ours, &Pair::theirs); }
std::string our_optimizer(const std::string& theirs) { return translated(theirs, kOptimizers, &Pair::theirs, &Pair::ours); }

}  // namespace cohort::study
