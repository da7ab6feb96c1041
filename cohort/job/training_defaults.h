#pragma once
// The learning rate and weight decay of a run that names none: by optimizer and model. A rate that suits SGD (0.1) leaves Adam at chance.

#include <string>
#include <vector>

#include "cohort/job/config.h"

namespace cohort {

/// Models that take one rate; the last row is for all others, a user's own among them.
struct ModelFamily {
  std::string name;
  std::vector<std::string> models;
};
const std::vector<ModelFamily>& model_families();

/// `model` as --model has it, with or without its sizes.
double default_learning_rate(const std::string& optimizer, const std::string& model);
double default_weight_decay(const std::string& optimizer);

/// What the configuration says, or the default.
double learning_rate_of(const Config& config);
double weight_decay_of(const Config& config);
/// With numbers in place of `auto`: what a run trains with and its config.toml has.
Config with_defaults(Config config);

/// The table of learning rates as text, for -h.
std::string learning_rate_table();

}  // namespace cohort
