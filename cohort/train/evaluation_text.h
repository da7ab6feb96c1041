#pragma once
// An evaluation for people: parts of sentences, a comparison with guessing, and the pictures of the most confident mistakes.

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
/// ", error 12 %", with the average precision of labels; "" if the error is unknown.
std::string error_text(const DataShape& shape, const Evaluation& evaluation);
/// "accuracy 90 %", "error 0.3 of a deviation", "average precision 0.8"; of labels without a precision "error 3 % of the labels".
std::string quality_text(const DataShape& shape, double error, double precision);

/// The quality of always giving the same answer, on some of the validation samples.
struct Guessing {
  double error = std::nan("");      ///< In the unit of `val_error`; NaN if the data have labels, or no targets.
  double precision = std::nan("");  ///< For labels.
  /// Advice if the model is not better: "an accuracy of 10 % is no better than always answering Bag, ..."; else "".
  std::string sentence;
};

/// `val_error` and `val_precision` are the model's. Reads at most 500 samples, spread over all, since decoding may be slow.
Guessing compare_with_guessing(const DataSource& validation, double val_error, double val_precision = std::nan(""));

inline constexpr int kMostMistakes = 12;

/// The mistakes to collect in an evaluation; 0 unless the samples are pictures with classes.
int num_mistakes_of(const DataShape& shape);

/// The mistakes with their pictures and the names of their classes.
MistakesRecord mistakes_record(int64_t step, const std::vector<Mistake>& mistakes, const DataSource& validation,
                               const DataDescription& description);

}  // namespace cohort
