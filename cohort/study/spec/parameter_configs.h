#pragma once
// Search spaces and points as JSON, in the format of the public archive: {"learning_rate": {"type": "DOUBLE", "scale": "LOG_SCALE",
// "min_value": 0.0001, "max_value": 10.0}, ...}. The store uses the same format.

#include <map>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/study/spec/hyperparameter.h"

namespace cohort::study {

/// A space, and the names of the choices of its categorical parameters, whose values are indices into that list.
struct ParameterConfigs {
  SearchSpace space;
  std::map<std::string, std::vector<std::string>> categories;
};

Json to_json(const SearchSpace& space);
/// Types DOUBLE, INTEGER, DISCRETE and CATEGORICAL; scales LINEAR_SCALE, LOG_SCALE and REVERSE_LOG_SCALE, also as UNIT_..., in any case;
/// "", null or a missing scale is linear. Error(kBadInput) beginning with `where`.
ParameterConfigs parse_parameter_configs(const Json& json, const std::string& where);

/// {"learning_rate": 0.1, ...}; INTEGER parameters of the space are written without a decimal point.
Json to_json(const Parameters& parameters, const SearchSpace& space);
Parameters parse_parameters(const Json& json, const ParameterConfigs& configs, const std::string& where);

// Names of the published archive that differ from ours.

/// Hyperparameters: learning_rate_decay_steps is our decay_steps, end_learning_rate_factor our end_factor; other names are the same.
std::string archive_parameter(const std::string& ours);
std::string our_parameter(const std::string& theirs);

/// Optimizers: nesterov_momentum is our nesterov; other names are the same.
std::string archive_optimizer(const std::string& ours);
std::string our_optimizer(const std::string& theirs);

}  // namespace cohort::study
