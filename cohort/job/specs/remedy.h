#pragma once
// What --remedy says: what is done against stale gradients. Torch-free.

#include <string>

namespace cohort {

/// rate:FACTOR: what the learning rates of all pushes are multiplied by, whether they are late or not; 1 for "". Error(kBadInput) for
/// anything else.
double parse_remedy(const std::string& text);

}  // namespace cohort
