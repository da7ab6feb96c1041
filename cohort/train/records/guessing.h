#pragma once
// Whether a model that was trained knows more than the data's own frequencies.

#include <cmath>
#include <string>

#include "cohort/data/source/source.h"

namespace cohort {

/// What always giving the same answer would have, of some of the validation samples.
struct Guessing {
  double error = std::nan("");      ///< In the unit of `val_error`; unknown where the data have labels, or samples no targets.
  double precision = std::nan("");  ///< Of labels.
  /// Where the model is no better, that and what to change: "an accuracy of 10 % is no better than always answering Bag, ..."; else "".
  std::string sentence;
};

/// `val_error` and `val_precision`: what a model has. Reads at most 500 samples, spread over all, for they may have to be decoded.
Guessing compare_with_guessing(const DataSource& validation, double val_error, double val_precision = std::nan(""));

}  // namespace cohort
