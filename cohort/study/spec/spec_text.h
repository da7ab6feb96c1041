#pragma once
// Numbers as specs and fingerprints have them; strings are base/text/toml_text.h's.

#include <string>

#include "cohort/base/text/toml_text.h"

namespace cohort::study {

/// The shortest text that reads back as the same double: 0.1, 1e-05, 3.
std::string number_text(double value);

}  // namespace cohort::study
