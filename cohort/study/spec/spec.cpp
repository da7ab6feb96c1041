// The hyperparameters of trials and their ranges, the checks that every spec has to pass, the points of trials, and the fingerprint by
// which two runs are recognised as the same study.
#include "cohort/study/spec/spec.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/study/spec/hyperparameter.h"

namespace cohort::study {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kMany = 1e15;

struct ParameterRule {
  const char* name;
  bool is_whole;
  double minimum, maximum;
  bool has_minimum, has_maximum;  // Whether the end itself is allowed.
  const char* optimizers;         // The optimizers that have it; empty: all.
  int dimension;                  // Dimension of the Halton sequence.
};
// Each name has a fixed dimension, whatever else is searched, so that a trial has the same units at every batch size even where one batch
// size fixes or adds a hyperparameter. Names that share a dimension exclude each other. The most important names have the smallest primes.
constexpr ParameterRule kRules[] = {
    {"learning_rate", false, 0, kInfinity, false, false, "", 0},
    {"momentum", false, 0, 1, true, false, "momentum nesterov", 1},
    {"beta1", false, 0, 1, true, false, "adam adamw", 1},
    {"beta2", false, 0, 1, true, false, "adam adamw", 7},
    {"epsilon", false, 0, kInfinity, false, false, "adam adamw", 8},
    {"weight_decay", false, 0, kInfinity, true, false, "", 5},
    {"label_smoothing", false, 0, 1, true, false, "", 4},
    {"decay_steps", true, 0, kMany, true, true, "", 2},
    {"decay_fraction", false, 0, 1, true, true, "", 2},
    {"end_factor", false, 0, 1, true, true, "", 3},
    {"warmup_steps", true, 0, kMany, true, true, "", 6},
    {"average_decay", false, 0, 1, true, false, "", 9},
};
constexpr int kNumDimensions = 10;

const ParameterRule& rule_of(const std::string& name) {
  for (const ParameterRule& rule : kRules)
    if (name == rule.name) return rule;
  fail(ErrorCode::kBadInput, "unknown hyperparameter ", quote_text(name), did_you_mean(name, trial_parameters()),
       "; known: ", join(trial_parameters(), " "));
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void check_values(const Hyperparameter& parameter, const ParameterRule& rule) {
  std::vector<double> values = parameter.values;
  if (parameter.type != Hyperparameter::Type::kDiscrete) values = {parameter.minimum, parameter.maximum};
  for (const double value : values) {
    const bool above = value > rule.minimum || (rule.has_minimum && value == rule.minimum);
    const bool below = value < rule.maximum || (rule.has_maximum && value == rule.maximum);
    if (!above || !below) {
      fail(ErrorCode::kBadInput, rule.name, ": ", value, " is out of range; expected ", rule.has_minimum ? "at least " : "more than ",
           rule.minimum,
           std::isinf(rule.maximum) ? std::string() : concat(rule.has_maximum ? " and at most " : " and less than ", rule.maximum));
    }
    if (rule.is_whole && value != std::round(value)) fail(ErrorCode::kBadInput, rule.name, ": ", value, " is not a whole number");
  }
  if (rule.is_whole && parameter.type == Hyperparameter::Type::kDouble)
    fail(ErrorCode::kBadInput, rule.name, " counts steps; its type is integer");
}

}  // namespace

const std::vector<std::string>& trial_parameters() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const ParameterRule& rule : kRules) list.emplace_back(rule.name);
    return list;
  }();
  return names;
}

bool is_whole_parameter(const std::string& name) { return rule_of(name).is_whole; }

void check_trial_parameter(const StudySpec& spec, const Hyperparameter& parameter) {
  const ParameterRule& rule = rule_of(parameter.name);
  const std::vector<std::string> optimizers = split(rule.optimizers, ' ');
  if (!optimizers.empty() && !contains(optimizers, spec.optimizer))
    fail(ErrorCode::kBadInput, rule.name, ": the optimizer ", quote_text(spec.optimizer), " has none; it belongs to ",
         join(optimizers, " and "));
  if (spec.is_noisy_quadratic() && parameter.name == "label_smoothing")
    fail(ErrorCode::kBadInput, rule.name, ": the noisy quadratic model has no classes, so there are no targets to smooth");
  if (spec.is_noisy_quadratic() && parameter.name == "average_decay")
    fail(ErrorCode::kBadInput, rule.name, ": the noisy quadratic model has an expected loss and no weights to average");
  check_hyperparameter(parameter);
  check_values(parameter, rule);
}

void check_space(const StudySpec& spec, const SearchSpace& space) {
  std::set<std::string> names;
  for (const Hyperparameter& parameter : space) {
    check_trial_parameter(spec, parameter);
    if (!names.insert(parameter.name).second) fail(ErrorCode::kBadInput, parameter.name, " is given twice");
  }
  if (!names.contains("learning_rate")) fail(ErrorCode::kBadInput, "no learning_rate is searched or fixed");
  if ((spec.optimizer == "momentum" || spec.optimizer == "nesterov") && !names.contains("momentum"))
    fail(ErrorCode::kBadInput, "no momentum is searched or fixed, but the optimizer ", spec.optimizer, " has one");
  if (names.contains("decay_steps") && names.contains("decay_fraction"))
    fail(ErrorCode::kBadInput, "decay_steps and decay_fraction both say when the learning rate stops falling; give one of them");
  if (names.contains("end_factor") && !names.contains("decay_steps") && !names.contains("decay_fraction"))
    fail(ErrorCode::kBadInput, "end_factor without decay_steps or decay_fraction has no effect; give one of them too");
  if (spec.weight_decay != 0 && names.contains("weight_decay"))
    fail(ErrorCode::kBadInput, "weight_decay is both fixed in [workload] and searched; give one of them");
}

void check_goal(const StudySpec& spec, const GoalSpec& goal) {
  std::vector<std::string> measured = {"val_loss"};
  if (!spec.is_noisy_quadratic()) {
    measured.insert(measured.end(), {"val_error", "val_precision"});
    if (spec.evaluate_train) measured.insert(measured.end(), {"train_loss", "train_error", "train_precision"});
  }
  if (!contains(measured, name_of(goal.metric))) {
    fail(ErrorCode::kBadInput, "goal ", goal.text(), ": this study does not measure ", name_of(goal.metric),
         "; measured: ", join(measured, " "),
         spec.evaluate_train || spec.is_noisy_quadratic() ? ""
                                                          : " (with evaluate_train = true also train_loss train_error train_precision)");
  }
  if (!std::isfinite(goal.value)) fail(ErrorCode::kBadInput, "goal ", goal.text(), ": the value is not finite");
  const auto is_same = [&](const GoalSpec& other) { return other.metric == goal.metric && other.value == goal.value; };
  if (std::count_if(spec.goals.begin(), spec.goals.end(), is_same) > 1)
    fail(ErrorCode::kBadInput, "goal ", goal.text(), " stands twice; give each goal once");
}

void check_spec(const StudySpec& spec) {
  if (spec.goals.empty()) fail(ErrorCode::kBadInput, "a study needs at least one goal");
  for (const GoalSpec& goal : spec.goals) check_goal(spec, goal);
  if (spec.batches.empty()) fail(ErrorCode::kBadInput, "a study needs at least one batch size");
  int64_t before = 0;
  for (const BatchSpec& batch : spec.batches) {
    try {
      if (batch.batch_size <= before) fail(ErrorCode::kBadInput, "batch sizes must be positive and rise, but it comes after ", before);
      if (batch.num_trials < 1) fail(ErrorCode::kBadInput, "trials: expected at least 1, found ", batch.num_trials);
      if (batch.train_steps < 1) fail(ErrorCode::kBadInput, "steps: expected at least 1, found ", batch.train_steps);
      evaluation_steps(spec.evaluation_ratio, batch.train_steps);
      check_space(spec, batch.space);
    } catch (const Error& error) {
      fail(error.code(), "batch size ", batch.batch_size, ": ", error.what());
    }
    before = batch.batch_size;
  }
}

std::vector<int64_t> evaluation_steps(double ratio, int64_t train_steps) {
  constexpr size_t kMaxEvaluations = 1'000'000;
  constexpr double kRounding = 1e-9;  // 1.1 x 10 is 11.000000000000002 in binary; its ceiling should be 11.
  std::vector<int64_t> steps = {0};
  while (steps.back() < train_steps) {
    const double next = std::ceil(ratio * static_cast<double>(steps.back()) * (1 - kRounding));
    // Compared as doubles: a huge ratio would overflow an integer.
    steps.push_back(next >= static_cast<double>(train_steps) ? train_steps : std::max(steps.back() + 1, static_cast<int64_t>(next)));
    if (steps.size() > kMaxEvaluations)
      fail(ErrorCode::kBadInput, "evaluation_ratio ", ratio, " over ", train_steps, " steps: a trial would be evaluated more than ",
           kMaxEvaluations, " times; take a larger ratio");
  }
  return steps;
}

uint64_t seed_of_trial(const StudySpec& spec, int64_t id) { return random_bits(spec.seed, id) >> 12; }

Parameters parameters_of_trial(const StudySpec& spec, const BatchSpec& batch, int64_t id) {
  const std::vector<double> point = Halton(kNumDimensions, spec.seed).point(id);
  std::vector<double> units;
  for (const Hyperparameter& parameter : batch.space) units.push_back(point[static_cast<size_t>(rule_of(parameter.name).dimension)]);
  return point_at(batch.space, units);
}

// The fingerprint: the settings that determine a trial's result, as one line of JSON, and the differences of two fingerprints.
namespace {

Json readable(const SearchSpace& space) {
  Json json = Json::object();
  for (const Hyperparameter& parameter : space) {
    std::string text;
    if (parameter.type == Hyperparameter::Type::kDiscrete) {
      std::vector<std::string> values;
      for (const double value : parameter.values) values.push_back(number_text(value));
      text = join(values, " or ");
    } else {
      text = concat(name_of(parameter.type), " ", name_of(parameter.scale), " ", number_text(parameter.minimum), " to ",
                    number_text(parameter.maximum));
    }
    json[parameter.name] = text;
  }
  return json;
}

std::string shown(const Json& value) { return value.is_string() ? quote_text(value.get<std::string>()) : value.dump(); }

void compare_spaces(const std::string& batch, const Json& before, const Json& now, std::vector<std::string>& differences) {
  for (const std::string& name : trial_parameters()) {
    const Json was = before.value(name, Json("not searched")), is = now.value(name, Json("not searched"));
    if (was != is)
      differences.push_back(concat(name, " at batch size ", batch, " was ", was.get<std::string>(), " and is ", is.get<std::string>()));
  }
}

void compare_batches(const Json& before, const Json& now, std::vector<std::string>& differences) {
  for (const auto& [size, was] : before.items()) {
    if (!now.contains(size)) continue;  // Not in the new spec: the stored batch size is kept.
    const Json& is = now[size];
    const auto steps_before = was.at("steps").get<int64_t>(), steps_now = is.at("steps").get<int64_t>();
    if (steps_now < steps_before)
      differences.push_back(concat("steps at batch size ", size, " were ", steps_before, " and are only ", steps_now));
    if (was.at("space").contains("decay_fraction") && steps_now > steps_before)
      differences.push_back(concat("steps at batch size ", size, " were ", steps_before, " and are ", steps_now,
                                   ", which moves every learning-rate decay, for decay_fraction is a part of them"));
    compare_spaces(size, was.at("space"), is.at("space"), differences);
  }
}

std::vector<std::string> compare(const Json& before, const Json& now) {
  std::vector<std::string> differences;
  // Fingerprints of older versions lack these keys; the values are the behaviour of those versions.
  static const std::map<std::string, std::string> later = {
      {"label_smoothing_over", "all"}, {"batches_at_the_end_of_an_epoch", "cut"}, {"evaluate_test", "false"}, {"image_size", "0"}};
  for (const auto& [key, first] : later)
    if (const std::string was = before.value(key, first), is = now.value(key, first); was != is)
      differences.push_back(concat(key, " was ", was, " and is ", is));
  for (const auto& [key, was] : before.items()) {
    if (later.contains(key)) continue;
    if (key == "batches") compare_batches(was, now.at(key), differences);
    else if (key == "goals") {
      for (const Json& goal : was)
        if (std::find(now.at(key).begin(), now.at(key).end(), goal) == now.at(key).end())
          differences.push_back(concat("the goal ", goal.get<std::string>(), " is gone"));
    } else if (now.at(key) != was) {
      differences.push_back(concat(key, " was ", shown(was), " and is ", shown(now.at(key))));
    }
  }
  return differences;
}

}  // namespace

std::string fingerprint(const StudySpec& spec) {
  Json json = {{"data", spec.data},
               {"model", spec.model},
               {"optimizer", spec.optimizer},
               {"context", spec.context},
               {"val_samples", spec.val_samples},
               {"train_samples", spec.train_samples},
               {"weight_decay", spec.weight_decay},
               {"seed", spec.seed},
               {"evaluation_ratio", spec.evaluation_ratio},
               {"evaluate_train", spec.evaluate_train},
               {"diverged_above", spec.diverged_above},
               {"censoring", spec.censor},
               {"margin", spec.censor_margin},
               {"halving", spec.halving}};
  if (!spec.is_noisy_quadratic()) json["batches_at_the_end_of_an_epoch"] = "run on";
  if (spec.label_smoothing_over != "all")
    json["label_smoothing_over"] = spec.label_smoothing_over;  // Omitted at the default, for stores of older versions.
  if (spec.image_size > 0) json["image_size"] = std::to_string(spec.image_size);
  if (spec.evaluate_test) json["evaluate_test"] = "true";
  json["goals"] = Json::array();
  for (const GoalSpec& goal : spec.goals) json["goals"].push_back(goal.text());
  json["batches"] = Json::object();
  for (const BatchSpec& batch : spec.batches)
    json["batches"][std::to_string(batch.batch_size)] = {
        {"trials", batch.num_trials}, {"steps", batch.train_steps}, {"space", readable(batch.space)}};
  return json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

std::string explain_difference(const std::string& fingerprint_of_store, const std::string& fingerprint_now) {
  try {
    return join(compare(Json::parse(fingerprint_of_store), Json::parse(fingerprint_now)), "; ");
  } catch (const Json::exception& error) {
    fail(ErrorCode::kBadInput, "the fingerprint of the store cannot be compared: ", error.what());
  }
}

StudySpec merge_specs(const StudySpec& before, StudySpec now) {
  for (const BatchSpec& batch : before.batches) {
    const auto at = std::lower_bound(now.batches.begin(), now.batches.end(), batch.batch_size,
                                     [](const BatchSpec& one, int64_t size) { return one.batch_size < size; });
    if (at == now.batches.end() || at->batch_size != batch.batch_size) now.batches.insert(at, batch);
    else at->num_trials = std::max(at->num_trials, batch.num_trials);
  }
  return now;
}

}  // namespace cohort::study
