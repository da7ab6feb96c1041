#pragma once
// Whether what a profile says of compressions means something. Torch-free.

#include <string>

#include "cohort/plan/profile/model_profile.h"

namespace cohort {

/// Error(kBadInput) for a compression that there is not, "none", one that comes twice for a device, and a device that no point speaks of.
/// `where` names the file.
void check_codings(const ModelProfile& profile, const std::string& where);

}  // namespace cohort
