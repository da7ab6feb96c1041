#pragma once
// Words of the published archive where ours differ: one name for one thing, so that the authors' studies and ours can be compared by name.

#include <string>

namespace cohort::study {

/// Metaparameters: learning_rate_decay_steps is our decay_steps, end_learning_rate_factor our end_factor; other names stay.
std::string archive_parameter(const std::string& ours);
std::string our_parameter(const std::string& theirs);

/// Optimizers: nesterov_momentum is our nesterov; other names stay.
std::string archive_optimizer(const std::string& ours);
std::string our_optimizer(const std::string& theirs);

}  // namespace cohort::study
