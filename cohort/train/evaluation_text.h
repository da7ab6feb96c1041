#pragma once
// What an evaluation found, as a person is told of it: parts of sentences, whether the model knows more than the data's own frequencies,
// and the pictures on which it was most sure, and wrong.

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "cohort/data/source/source.h"
#include "cohort/record/end_records.h"
#include "cohort/record/evaluation.h"

namespace cohort {

/// ", f1 0.9, top5-error 0.01".
std::string metrics_text(const std::map<std::string, double>& metrics);
/// ", error 12 %", of labels with their average precision; "" where no error is known.
std::string error_text(const DataShape& shape, const Evaluation& evaluation);
/// "accuracy 90 %", "error 0.3 of a deviation", "average precision 0.8"; of labels without a precision "error 3 % of the labels".
std::string quality_text(const DataShape& shape, double error, double precision);

/// What always giving the same answer would have, of some of the validation samples.
struct Guessing {
  double error = std::nan("");      ///< In the unit of `val_error`; unknown where the data have labels, or samples no targets.
  double precision = std::nan("");  ///< Of labels.
  /// Where the model is no better, that and what to change: "an accuracy of 10 % is no better than always answering Bag, ..."; else "".
  std::string sentence;
};

/// `val_error` and `val_precision`: what a model has. Reads at most 500 samples, spread over all, for they may have to be decoded.
Guessing compare_with_guessing(const DataSource& validation, double val_error, double val_precision = std::nan(""));

inline constexpr int kMostMistakes = 12;

/// How many of an evaluation's mistakes are worth asking for: 0 where samples are no pictures with classes.
int num_mistakes_of(const DataShape& shape);

/// Those of the validation samples, with their classes' names. Empty where there are none.
MistakesRecord mistakes_record(int64_t step, const std::vector<Mistake>& mistakes, const DataSource& validation,
                               const DataDescription& description);

}  // namespace cohort
