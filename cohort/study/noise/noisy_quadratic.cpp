#include "cohort/study/noise/noisy_quadratic.h"

#include <cmath>
#include <optional>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort::study {
namespace {

double number_of(const std::string& data, const std::string& key, const std::string& text, double least, double most) {
  const std::optional<double> value = parse_number(text);
  if (!value || !(*value >= least && *value <= most))
    fail(ErrorCode::kBadInput, data, ": ", key, "=", text, ": expected a number from ", least, " to ", most);
  return *value;
}

}  // namespace

NoisyQuadratic parse_noisy_quadratic(const std::string& data) {
  const std::string name = "noisy-quadratic";
  NoisyQuadratic model;
  if (data == name) return model;
  if (!data.starts_with(name + ":")) fail(ErrorCode::kBadInput, "'", data, "' is not noisy-quadratic[:key=value,...]");
  const std::vector<std::string> keys = {"dimensions", "power", "noise", "start", "averaging", "sampled"};
  const std::string options = data.substr(name.size() + 1);
  if (trim(options).empty()) fail(ErrorCode::kBadInput, data, ": expected key=value after the colon; keys: ", join(keys, " "));
  for (const std::string& part : split(options, ',')) {
    const size_t equals = part.find('=');
    if (equals == std::string::npos) fail(ErrorCode::kBadInput, data, ": '", part, "': expected key=value");
    const std::string key = trim(part.substr(0, equals)), value = trim(part.substr(equals + 1));
    if (key == "dimensions") {
      const double count = number_of(data, key, value, 1, 1e7);
      if (count != std::floor(count)) fail(ErrorCode::kBadInput, data, ": dimensions=", value, ": expected a whole number");
      model.num_dimensions = static_cast<int64_t>(count);
    } else if (key == "power") {
      model.curvature_power = number_of(data, key, value, 0, 10);
    } else if (key == "noise") {
      model.noise = number_of(data, key, value, 0, 1e12);
    } else if (key == "start") {
      model.start = number_of(data, key, value, 0, 1e12);
    } else if (key == "averaging") {
      model.averaging = number_of(data, key, value, 0, 0.9999999);
    } else if (key == "sampled") {
      if (value != "0" && value != "1") fail(ErrorCode::kBadInput, data, ": sampled=", value, ": expected 0 or 1");
      model.sampled = value == "1";
    } else {
      fail(ErrorCode::kBadInput, data, ": unknown key '", key, "'", did_you_mean(key, keys), "; keys: ", join(keys, " "));
    }
  }
  return model;
}

}  // namespace cohort::study
