#pragma once
// What the evaluations of a run have come to: the best step that was saved, and how many evaluations since were no better. Best is the
// lowest validation loss, which every model has; of two alike the earlier.

#include <cstdint>
#include <limits>

#include "cohort/base/text/json_fwd.h"
#include "cohort/record/fields.h"

namespace cohort {

struct EvaluatedStep {
  int64_t step = -1;  ///< -1: none.
  double val_loss = std::numeric_limits<double>::infinity();
  double val_error = kUnknown;      ///< Unknown where the model has none,
  double val_precision = kUnknown;  ///< and where the data have no labels.
};

/// A value; every rank has its own, and the same.
class BestStep {
 public:
  /// Whether that is better than the best that was saved.
  bool add(const EvaluatedStep& evaluated);
  /// The checkpoint of `step` was saved: the best, where the last evaluation was of that step and better.
  void saved(int64_t step);

  const EvaluatedStep& best() const { return best_; }
  const EvaluatedStep& last() const { return last_; }
  /// Since the best.
  int64_t evaluations_since() const { return evaluations_since_; }

  Json state() const;
  void load(const Json& state);

 private:
  EvaluatedStep best_, last_;
  bool is_better_ = false;  ///< The last is than the best.
  int64_t evaluations_since_ = 0;
};

}  // namespace cohort
