// The noisy quadratic model: parsing of its specification, the exact and the sampled evolution of its weights, and trials on it.
#include "cohort/study/noise/noisy_quadratic.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>
#include <vector>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/base/text/text.h"

namespace cohort::study {
namespace {

constexpr char kQuadraticName[] = "noisy-quadratic";

/// One setting of the specification and its range.
struct QuadraticSetting {
  std::string key;
  double& value;
  double minimum, maximum;
  bool is_whole = false;
};

}  // namespace

NoisyQuadratic parse_noisy_quadratic(const std::string& data) {
  NoisyQuadratic model;
  if (data == kQuadraticName) return model;
  if (!data.starts_with(concat(kQuadraticName, ":"))) fail(ErrorCode::kBadInput, "'", data, "' is not noisy-quadratic[:key=value,...]");
  double dimensions = static_cast<double>(model.num_dimensions), sampled = model.sampled ? 1 : 0;
  const std::vector<QuadraticSetting> settings = {
      {"dimensions", dimensions, 1, 1e7, true}, {"power", model.curvature_power, 0, 10},      {"noise", model.noise, 0, 1e12},
      {"start", model.start, 0, 1e12},          {"averaging", model.averaging, 0, 0.9999999}, {"sampled", sampled, 0, 1, true}};
  std::vector<std::string> keys;
  for (const QuadraticSetting& setting : settings) keys.push_back(setting.key);
  const std::string options = data.substr(std::size(kQuadraticName));
  if (trim(options).empty()) fail(ErrorCode::kBadInput, data, ": expected key=value after the colon; keys: ", join(keys, " "));
  for (const std::string& part : split(options, ',')) {
    const size_t equals = part.find('=');
    if (equals == std::string::npos) fail(ErrorCode::kBadInput, data, ": '", part, "': expected key=value");
    const std::string key = trim(part.substr(0, equals)), text = trim(part.substr(equals + 1));
    const auto at = std::find(keys.begin(), keys.end(), key);
    if (at == keys.end())
      fail(ErrorCode::kBadInput, data, ": unknown key '", key, "'", did_you_mean(key, keys), "; keys: ", join(keys, " "));
    const QuadraticSetting& setting = settings[static_cast<size_t>(at - keys.begin())];
    const std::optional<double> value = parse_number(text);
    if (!value || !(*value >= setting.minimum && *value <= setting.maximum) || (setting.is_whole && *value != std::floor(*value)))
      fail(ErrorCode::kBadInput, data, ": ", key, "=", text, ": expected a ", setting.is_whole ? "whole " : "", "number from ",
           setting.minimum, " to ", setting.maximum);
    setting.value = *value;
  }
  model.num_dimensions = static_cast<int64_t>(dimensions);
  model.sampled = sampled == 1;
  return model;
}

// The evolution of the weights.
//
// In each dimension (curvature h, gradient (h + decay) x + e, Var e = noise h / B) a step is linear in the state s = (x, v, y) of weight,
// velocity and moving average:
//   v' = m v + g,   x' = x - lr v' (heavy ball)  or  x - lr (g + m v') (nesterov),   y' = a y + (1 - a) x'
// so s' = A s + b e, and the second moments M = E[s s'] obey  M' = A M A^T + N,  N = b b^T Var e: exact, whatever the noise's shape.
// A model without momentum or averaging has no v or y: 1, 2 or 3 numbers per dimension.
//
// n steps at one learning rate are made at once: the maps of 2^k steps follow by doubling,
//   A_2k = A_k A_k,   N_2k = A_k N_k A_k^T + N_k,
// and those of the bits of n are applied one after the other: O(log n) small products per dimension, no eigenvalues, no division, so
// double roots (critical damping) need no special case. Eight dimensions are computed at a time, for vector instructions.
//
// Source: Zhang et al., 2019, "Which Algorithmic Choices Matter at Which Batch Sizes?", 1907.04164, section 3 and appendix (recursions of
// means and variances one step at a time). Doubling is ours; the start is random with mean 0, so means stay 0 and are not stored.
namespace {

constexpr int kLanes = 8;
using Lanes = std::array<double, kLanes>;

template <int D>
using Matrix = std::array<std::array<Lanes, D>, D>;

template <int D>
void multiply(const Matrix<D>& a, const Matrix<D>& b, bool transpose_b, Matrix<D>& out) {
  for (size_t i = 0; i < D; ++i)
    for (size_t j = 0; j < D; ++j) {
      Lanes sum{};
      for (size_t k = 0; k < D; ++k) {
        const Lanes& right = transpose_b ? b[j][k] : b[k][j];
        for (size_t lane = 0; lane < kLanes; ++lane) sum[lane] += a[i][k][lane] * right[lane];
      }
      out[i][j] = sum;
    }
}

/// The map of a number of steps: moments M become A M A^T + N.
template <int D>
struct Map {
  Matrix<D> a{}, n{};

  void apply(Matrix<D>& moments) const {
    Matrix<D> half;
    multiply<D>(a, moments, false, half);
    multiply<D>(half, a, true, moments);
    for (size_t i = 0; i < D; ++i)
      for (size_t j = 0; j < D; ++j)
        for (size_t lane = 0; lane < kLanes; ++lane) moments[i][j][lane] += n[i][j][lane];
  }
  Map doubled() const {
    Map twice;
    multiply<D>(a, a, false, twice.a);
    twice.n = n;
    apply(twice.n);
    return twice;
  }
};

struct Curvatures {
  std::vector<Lanes> of_block;  ///< Unused lanes have curvature 0: their weights never move and have no loss.

  explicit Curvatures(const NoisyQuadratic& model) : of_block(static_cast<size_t>((model.num_dimensions + kLanes - 1) / kLanes)) {
    for (int64_t i = 0; i < model.num_dimensions; ++i)
      of_block[static_cast<size_t>(i / kLanes)][static_cast<size_t>(i % kLanes)] =
          std::pow(static_cast<double>(i + 1), -model.curvature_power);
  }
};

/// D = 1 (x), 2 (x, v), or one more with a moving average as the last.
template <int D>
class ExactState : public QuadraticState {
 public:
  ExactState(const NoisyQuadratic& model, const QuadraticRule& rule)
      : model_(model), rule_(rule), curvatures_(model), moments_(curvatures_.of_block.size()) {
    for (Matrix<D>& moments : moments_) {
      moments = {};
      for (const size_t i : {size_t{0}, measured()})
        for (const size_t j : {size_t{0}, measured()}) moments[i][j].fill(model.start);
    }
  }

  void advance(int64_t steps, double learning_rate) override {
    if (learning_rate != learning_rate_) {
      maps_.clear();
      learning_rate_ = learning_rate;
    }
    for (size_t level = 0; (steps >> level) > 0; ++level)
      if ((steps >> level) & 1) apply(level, moments_);
  }

  double loss() const override { return loss_of(moments_); }

  std::optional<int64_t> advance_to(double goal, double learning_rate, int max_doublings) override {
    if (loss() < goal) return 0;
    maps_.clear();
    learning_rate_ = learning_rate;
    int64_t steps = 0;
    std::vector<Matrix<D>> there;
    int level = 0;
    for (;; ++level) {  // Up, while 2^level steps are too few.
      there = moments_;
      apply(static_cast<size_t>(level), there);
      if (loss_of(there) < goal) break;
      if (level == max_doublings || !std::isfinite(loss_of(there))) return std::nullopt;
    }
    while (--level >= 0) {
      there = moments_;
      apply(static_cast<size_t>(level), there);
      if (loss_of(there) < goal) continue;
      moments_ = there;
      steps += int64_t{1} << level;
    }
    return steps;
  }

 private:
  static constexpr size_t kVelocity = 1;
  bool has_velocity() const { return rule_.momentum > 0; }
  /// Index of the state component that the loss is computed from.
  size_t measured() const { return model_.averaging > 0 ? D - 1 : 0; }

  double loss_of(const std::vector<Matrix<D>>& moments) const {
    double sum = 0;
    for (size_t block = 0; block < moments.size(); ++block)
      for (size_t lane = 0; lane < kLanes; ++lane)
        if (curvatures_.of_block[block][lane] > 0) sum += curvatures_.of_block[block][lane] * moments[block][measured()][measured()][lane];
    return sum / 2;
  }

  /// Makes 2^level steps.
  void apply(size_t level, std::vector<Matrix<D>>& moments) {
    while (maps_.size() <= level) {
      std::vector<Map<D>> next(moments_.size());
      for (size_t block = 0; block < next.size(); ++block) next[block] = maps_.empty() ? one_step(block) : maps_.back()[block].doubled();
      maps_.push_back(std::move(next));
    }
    for (size_t block = 0; block < moments.size(); ++block) maps_[level][block].apply(moments[block]);
  }

  Map<D> one_step(size_t block) const {
    Map<D> map;
    const double rate = learning_rate_, m = rule_.momentum, gradient_weight = rule_.nesterov ? 1 + m : 1,
                 velocity_weight = rule_.nesterov ? m * m : m;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const double h = curvatures_.of_block[block][lane], slope = h > 0 ? h + rule_.weight_decay : 0;
      std::array<std::array<double, D>, D> a{};
      std::array<double, D> b{};
      a[0][0] = 1 - rate * gradient_weight * slope;
      b[0] = -rate * gradient_weight;
      if constexpr (D > 1) {
        if (has_velocity()) {
          a[0][kVelocity] = -rate * velocity_weight;
          a[kVelocity][0] = slope;
          a[kVelocity][kVelocity] = m;
          b[kVelocity] = 1;
        }
        if (model_.averaging > 0) {
          for (size_t j = 0; j < D; ++j) a[D - 1][j] = (1 - model_.averaging) * a[0][j];
          a[D - 1][D - 1] += model_.averaging;
          b[D - 1] = (1 - model_.averaging) * b[0];
        }
      }
      const double variance = model_.noise * h / rule_.batch_size;
      for (size_t i = 0; i < D; ++i)
        for (size_t j = 0; j < D; ++j) {
          map.a[i][j][lane] = a[i][j];
          map.n[i][j][lane] = b[i] * b[j] * variance;
        }
    }
    return map;
  }

  const NoisyQuadratic model_;
  const QuadraticRule rule_;
  const Curvatures curvatures_;
  std::vector<Matrix<D>> moments_;         // One a block of dimensions.
  std::vector<std::vector<Map<D>>> maps_;  // [level][block], of learning_rate_.
  double learning_rate_ = std::numeric_limits<double>::quiet_NaN();
};

/// One sampled path. Every draw is a pure function of (seed, step, dimension).
class SampledState : public QuadraticState {
 public:
  SampledState(const NoisyQuadratic& model, const QuadraticRule& rule, uint64_t seed)
      : model_(model), rule_(rule), seed_(seed), x_(static_cast<size_t>(model.num_dimensions)), v_(x_.size(), 0), h_(x_.size()) {
    for (size_t i = 0; i < x_.size(); ++i) h_[i] = std::pow(static_cast<double>(i + 1), -model.curvature_power);
    draw(0);
    for (size_t i = 0; i < x_.size(); ++i) x_[i] = std::sqrt(model.start) * normal_[i];
    y_ = x_;
  }

  void advance(int64_t steps, double learning_rate) override {
    for (int64_t i = 0; i < steps; ++i) step(learning_rate);
  }

  double loss() const override {
    const std::vector<double>& weights = model_.averaging > 0 ? y_ : x_;
    double sum = 0;
    for (size_t i = 0; i < weights.size(); ++i) sum += h_[i] * weights[i] * weights[i];
    return sum / 2;
  }

  std::optional<int64_t> advance_to(double, double, int) override {
    fail(ErrorCode::kBadInput, "noisy-quadratic: steps to a loss are known in advance for its expectation only (sampled=0)");
  }

 private:
  /// Normal numbers by Box and Muller, two at a time.
  void draw(int64_t step) {
    normal_.resize(x_.size() + 1);
    for (size_t i = 0; i < x_.size(); i += 2) {
      const double radius = std::sqrt(-2 * std::log1p(-unit_interval(random_bits(seed_, step, i))));
      const double angle = 2 * std::numbers::pi * unit_interval(random_bits(seed_, step, i + 1));
      normal_[i] = radius * std::cos(angle);
      normal_[i + 1] = radius * std::sin(angle);
    }
  }

  void step(double rate) {
    draw(++num_steps_);
    for (size_t i = 0; i < x_.size(); ++i) {
      const double g = (h_[i] + rule_.weight_decay) * x_[i] + std::sqrt(model_.noise * h_[i] / rule_.batch_size) * normal_[i];
      v_[i] = rule_.momentum * v_[i] + g;
      x_[i] -= rate * (rule_.nesterov ? g + rule_.momentum * v_[i] : v_[i]);
      y_[i] = model_.averaging * y_[i] + (1 - model_.averaging) * x_[i];
    }
  }

  const NoisyQuadratic model_;
  const QuadraticRule rule_;
  const uint64_t seed_;
  std::vector<double> x_, v_, h_, y_, normal_;
  int64_t num_steps_ = 0;
};

}  // namespace

QuadraticRule quadratic_rule(const std::string& optimizer, double momentum, double batch_size, double weight_decay) {
  if (optimizer != "sgd" && optimizer != "momentum" && optimizer != "nesterov")
    fail(ErrorCode::kBadInput, "noisy-quadratic: optimizer '", optimizer, "'; its exact recursion is known for sgd, momentum and nesterov");
  if (optimizer == "sgd") momentum = 0;
  if (!(momentum >= 0 && momentum < 1)) fail(ErrorCode::kBadInput, "noisy-quadratic: momentum ", momentum, " is not in [0, 1)");
  if (!(batch_size > 0)) fail(ErrorCode::kBadInput, "noisy-quadratic: a batch of ", batch_size, " samples");
  if (!(weight_decay >= 0)) fail(ErrorCode::kBadInput, "noisy-quadratic: weight_decay ", weight_decay, " is negative");
  return {.nesterov = optimizer == "nesterov", .momentum = momentum, .weight_decay = weight_decay, .batch_size = batch_size};
}

std::unique_ptr<QuadraticState> make_quadratic_state(const NoisyQuadratic& model, const QuadraticRule& rule, uint64_t seed) {
  if (model.sampled) return std::make_unique<SampledState>(model, rule, seed);
  const int parts = 1 + (rule.momentum > 0) + (model.averaging > 0);
  if (parts == 1) return std::make_unique<ExactState<1>>(model, rule);
  if (parts == 2) return std::make_unique<ExactState<2>>(model, rule);
  return std::make_unique<ExactState<3>>(model, rule);
}

// Trials of the noisy quadratic model. A trial of any length is cheap: between two evaluations the moments advance at once, unless the
// learning rate changes or the noise is sampled. There are no snapshots: a resumed trial starts over and reports every measurement again.
namespace {

using Clock = std::chrono::steady_clock;

/// Warm-up, then linear decay or a constant rate. docs/algorithms/batch_size_study.md.
struct RateSchedule {
  double rate = 0, end_factor = 0;
  int64_t warmup_steps = 0, decay_steps = 0;

  double at(int64_t step) const {
    if (step < warmup_steps) return rate * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
    if (decay_steps <= 0) return rate;
    const double done = std::min(1.0, static_cast<double>(step - warmup_steps) / static_cast<double>(decay_steps));
    return rate * (1 - (1 - end_factor) * done);
  }
  /// The step from which the rate is constant.
  int64_t constant_from() const { return warmup_steps + std::max<int64_t>(0, decay_steps); }
};

double value_or(const Parameters& parameters, const std::string& name, double otherwise) {
  return find_parameter(parameters, name).value_or(otherwise);
}

RateSchedule schedule_of(const TrialOrder& order) {
  const auto rate = order.parameters.find("learning_rate");
  if (rate == order.parameters.end()) fail(ErrorCode::kFailed, "noisy-quadratic: trial ", order.id, " has no learning_rate");
  const double fraction = value_or(order.parameters, "decay_fraction", 0);
  return {.rate = rate->second,
          .end_factor = value_or(order.parameters, "end_factor", 0),
          .warmup_steps = std::llround(value_or(order.parameters, "warmup_steps", 0)),
          .decay_steps = fraction > 0 ? std::llround(fraction * static_cast<double>(order.train_steps))
                                      : std::llround(value_or(order.parameters, "decay_steps", 0))};
}

void check_parameters(const Parameters& parameters) {
  static const std::vector<std::string> known = {"learning_rate",  "momentum",   "weight_decay", "decay_steps",
                                                 "decay_fraction", "end_factor", "warmup_steps"};
  for (const auto& [name, value] : parameters)
    if (std::find(known.begin(), known.end(), name) == known.end())
      fail(ErrorCode::kFailed, "noisy-quadratic: a trial has the parameter ", name, ", which this model does not know; it knows ",
           join(known, " "));
}

class QuadraticRunner : public TrialRunner {
 public:
  explicit QuadraticRunner(const StudySpec& spec) : spec_(spec), model_(parse_noisy_quadratic(spec.data)) {
    quadratic_rule(spec.optimizer, 0.9, 1, spec.weight_decay);  // Reports errors now, not at the first trial.
  }

  TrialOutcome run(const TrialOrder& order, const TrialWatch& watch) override {
    const auto began = Clock::now();
    check_parameters(order.parameters);
    const RateSchedule schedule = schedule_of(order);
    const auto state = make_quadratic_state(model_, rule_of(order), order.seed);
    TrialOutcome outcome{.status = TrialStatus::kComplete};
    for (const int64_t step : evaluation_steps(spec_.evaluation_ratio, order.train_steps)) {
      advance(*state, schedule, outcome.steps, step);
      outcome.steps = step;
      const double loss = state->loss();
      if (!(loss <= spec_.diverged_above)) {
        outcome.status = TrialStatus::kInfeasible;
        break;
      }
      Measurement measurement;
      measurement.step = step;
      measurement.values[kValLoss] = loss;
      if (spec_.evaluate_train) measurement.values[kTrainLoss] = loss;  // There is only one loss: no data is held out.
      if (watch.measured && watch.measured(measurement) <= step && step < order.train_steps) {
        outcome.status = TrialStatus::kCensored;
        break;
      }
    }
    outcome.seconds = seconds_since(began);
    return outcome;
  }

  /// Where several steps are made at once, all of the time is counted as the evaluation's.
  Cost measure(int64_t batch_size) override {
    TrialOrder order{.batch_size = batch_size, .train_steps = 1000, .parameters = {{"learning_rate", 0.01}}};
    const auto state = make_quadratic_state(model_, rule_of(order), 1);
    constexpr int kRounds = 20;
    Cost cost;
    if (model_.sampled || has_schedule()) {
      const auto began = Clock::now();
      for (int i = 0; i < kRounds; ++i) state->advance(1, 0.01 + 1e-6 * i);
      cost.step_seconds = seconds_since(began) / kRounds;
    }
    const auto began = Clock::now();
    double sum = 0;
    for (int i = 0; i < kRounds; ++i) {
      if (cost.step_seconds == 0) state->advance(1 + 37 * i, 0.01);
      sum += state->loss();
    }
    cost.evaluation_seconds = seconds_since(began) / kRounds;
    if (!std::isfinite(sum)) fail(ErrorCode::kFailed, spec_.data, ": the loss is not finite while it is timed");
    return cost;
  }

 private:
  QuadraticRule rule_of(const TrialOrder& order) const {
    return quadratic_rule(spec_.optimizer, value_or(order.parameters, "momentum", 0.9), static_cast<double>(order.batch_size),
                          value_or(order.parameters, "weight_decay", spec_.weight_decay));
  }

  bool has_schedule() const {
    for (const BatchSpec& batch : spec_.batches)
      for (const Hyperparameter& one : batch.space)
        if (one.name == "decay_steps" || one.name == "decay_fraction" || one.name == "warmup_steps") return true;
    return false;
  }

  static void advance(QuadraticState& state, const RateSchedule& schedule, int64_t from, int64_t to) {
    for (; from < to && from < schedule.constant_from(); ++from) state.advance(1, schedule.at(from));
    if (from < to) state.advance(to - from, schedule.at(from));
  }

  const StudySpec spec_;
  const NoisyQuadratic model_;
};

}  // namespace

std::unique_ptr<TrialRunner> make_noisy_quadratic_runner(const StudySpec& spec) { return std::make_unique<QuadraticRunner>(spec); }

}  // namespace cohort::study
