#pragma once
// Whether a model that was trained knows more than the data's own frequencies.

#include <cmath>
#include <string>

#include "cohort/data/source.h"

namespace cohort {

/// A sentence where `val_error` (of labels `val_precision`) is no better than what always giving the same answer has, with that answer and
/// what to try; else "". Looks at the first samples of `validation` alone, so it costs little where they have to be decoded.
std::string guessing_sentence(const DataSource& validation, double val_error, double val_precision = std::nan(""));

}  // namespace cohort
