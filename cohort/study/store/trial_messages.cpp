#include "cohort/study/store/trial_messages.h"

#include <limits>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"

namespace cohort::study {
namespace {

double number(const Json& json) { return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>(); }

/// The library's own exceptions name neither file nor field.
template <typename Read>
auto checked(const std::string& what, const Read& read) {
  try {
    return read();
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::kBadInput, what, " is damaged: ", error.what());
  }
}

}  // namespace

Json to_json(const Trial& trial) {
  Json measurements = Json::array();
  for (const Measurement& measurement : trial.measurements) {
    Json row = Json::array({measurement.step});
    for (const double value : measurement.values) row.push_back(finite_json(value));
    measurements.push_back(std::move(row));
  }
  return {{"id", trial.id},
          {"status", name_of(trial.status)},
          {"steps", trial.steps},
          {"seconds", finite_json(trial.seconds)},
          {"parameters", trial.parameters},
          {"measurements", std::move(measurements)}};
}

Trial trial_from_json(const Json& json, const std::string& what) {
  return checked(what, [&] {
    Trial trial;
    trial.id = json.at("id").get<int64_t>();
    trial.status = parse_trial_status(json.at("status").get<std::string>());
    trial.steps = json.at("steps").get<int64_t>();
    trial.seconds = number(json.at("seconds"));
    trial.parameters = json.at("parameters").get<Parameters>();
    for (const Json& row : json.at("measurements")) {
      if (row.size() != kNumMetrics + 1) fail(ErrorCode::kBadInput, what, " is damaged: a measurement has ", row.size(), " numbers");
      Measurement measurement;
      measurement.step = row.at(0).get<int64_t>();
      for (size_t i = 0; i < kNumMetrics; ++i) measurement.values[i] = number(row.at(i + 1));
      trial.measurements.push_back(measurement);
    }
    return trial;
  });
}

Json to_json(const TrialOrder& order) {
  return {{"batch_size", order.batch_size}, {"id", order.id},     {"train_steps", order.train_steps},
          {"parameters", order.parameters}, {"seed", order.seed}, {"snapshot", order.snapshot}};
}

TrialOrder order_from_json(const Json& json, const std::string& what) {
  return checked(what, [&] {
    return TrialOrder{json.at("batch_size").get<int64_t>(),    json.at("id").get<int64_t>(),    json.at("train_steps").get<int64_t>(),
                      json.at("parameters").get<Parameters>(), json.at("seed").get<uint64_t>(), json.at("snapshot").get<std::string>()};
  });
}

Json to_json(const TrialBound& bound) { return {{"stop_at", bound.stop_at}, {"best", bound.best}}; }

TrialBound bound_from_json(const Json& json, const std::string& what) {
  return checked(what, [&] { return TrialBound{json.at("stop_at").get<int64_t>(), json.at("best").get<ReachedSteps>()}; });
}

}  // namespace cohort::study
