// The noisy quadratic model: what is known of it without running a trial. noisy_quadratic_state.cpp has the recursion.
//
// Plain SGD in closed form. With r = (1 - lr h)^2 the second moment of a weight is
//   E[x_t^2] = r^t start + lr^2 (noise h / B) (1 - r^t) / (1 - r),
// and the expected loss half the sum of h E[x_t^2].
//
// Source: Zhang et al., 2019, 1907.04164, equation 3. Difference: the start is random with mean 0 and variance `start` (theirs: fixed 1),
// which has the same expected loss for plain SGD.
#include "cohort/study/noise/noisy_quadratic.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/study/noise/noisy_quadratic_state.h"

namespace cohort::study {
namespace {

constexpr int kMaxDoublings = 22;

double number_of(const std::string& data, const std::string& key, const std::string& text, double least, double most) {
  const std::optional<double> value = parse_number(text);
  if (!value || !(*value >= least && *value <= most))
    fail(ErrorCode::kBadInput, data, ": ", key, "=", text, ": expected a number from ", least, " to ", most);
  return *value;
}

NoisyQuadratic expectation_of(NoisyQuadratic model) {
  model.sampled = false;
  return model;
}

/// As steps_to_loss; the state's maps hold one learning rate at a time.
std::optional<int64_t> steps_at(const NoisyQuadratic& model, const QuadraticRule& rule, double learning_rate, double goal) {
  const auto state = make_quadratic_state(model, rule, 0);
  if (state->loss() < goal) return 0;
  const std::optional<int64_t> before = state->advance_to(goal, learning_rate, kMaxDoublings);
  return before ? std::optional(*before + 1) : std::nullopt;
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

double expected_loss(const NoisyQuadratic& model, const std::string& optimizer, double learning_rate, double momentum, double batch_size,
                     int64_t steps) {
  const auto state = make_quadratic_state(expectation_of(model), quadratic_rule(optimizer, momentum, batch_size), 0);
  state->advance(steps, learning_rate);
  return state->loss();
}

double expected_loss_sgd(const NoisyQuadratic& model, double learning_rate, double batch_size, double steps) {
  if (model.averaging > 0) fail(ErrorCode::kBadInput, "noisy-quadratic: no closed form with averaging=", model.averaging);
  double sum = 0;
  for (int64_t i = 1; i <= model.num_dimensions; ++i) {
    const double h = std::pow(static_cast<double>(i), -model.curvature_power), rate = learning_rate * h;
    const double r = (1 - rate) * (1 - rate), one_minus_r = rate * (2 - rate), decayed = std::pow(r, steps);
    const double kicks = one_minus_r == 0 ? steps : (1 - decayed) / one_minus_r;  // Steps of noise that are still felt.
    sum += h * (decayed * model.start + learning_rate * learning_rate * model.noise * h / batch_size * kicks);
  }
  return sum / 2;
}

std::optional<int64_t> steps_to_loss(const NoisyQuadratic& model, const std::string& optimizer, double learning_rate, double momentum,
                                     double batch_size, double goal) {
  return steps_at(expectation_of(model), quadratic_rule(optimizer, momentum, batch_size), learning_rate, goal);
}

std::optional<QuadraticOptimum> fewest_steps(const NoisyQuadratic& model, const std::string& optimizer, double momentum, double batch_size,
                                             double goal) {
  const QuadraticRule rule = quadratic_rule(optimizer, momentum, batch_size);
  const NoisyQuadratic exact = expectation_of(model);
  std::optional<QuadraticOptimum> best;
  // The largest curvature is 1: nothing is stable above 2 (1 + momentum). Ties go to the smaller rate.
  double low = 1e-6, high = 2 * (1 + rule.momentum);
  for (int points = 40; high / low > 1.001; points = 12) {
    const double ratio = std::pow(high / low, 1.0 / points);
    for (int i = 0; i <= points; ++i) {
      const double rate = low * std::pow(ratio, i);
      const std::optional<int64_t> steps = steps_at(exact, rule, rate, goal);
      if (steps && (!best || *steps < best->steps || (*steps == best->steps && rate < best->learning_rate))) best = {rate, *steps};
    }
    if (!best) return std::nullopt;
    low = best->learning_rate / ratio;
    high = best->learning_rate * ratio;
  }
  return best;
}

}  // namespace cohort::study
