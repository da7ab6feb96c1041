// What decides a trial's result, as one line of JSON, and what differs between two such lines.

#include <algorithm>
#include <map>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/study/spec/spec.h"
#include "cohort/study/spec/spec_text.h"

namespace cohort::study {
namespace {

Json readable(const SearchSpace& space) {
  Json json = Json::object();
  for (const Metaparameter& parameter : space) {
    std::string text;
    if (parameter.type == Metaparameter::Type::kDiscrete) {
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
    if (!now.contains(size)) continue;  // Not asked for this time: it stays as it is.
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
  // Stores that know nothing of a key have what it was before there was one.
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
    json["label_smoothing_over"] = spec.label_smoothing_over;  // So stores that know nothing of it fit.
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
    fail(ErrorCode::kBadInput, "what the store says of its study cannot be compared: ", error.what());
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
