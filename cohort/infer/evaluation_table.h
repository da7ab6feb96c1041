#pragma once
// What an evaluation found, class by class, as a person reads it.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/record/evaluation.h"

namespace cohort {

struct ClassResult {
  std::string name;
  int64_t samples = 0;        ///< That are of the class,
  int64_t right = 0;          ///< that were taken for it and are,
  int64_t taken_for = 0;      ///< and that were taken for it.
  std::string confused_with;  ///< The class that its samples were most often taken for instead; "" for none.
  int64_t num_confused = 0;
};

/// Of an evaluation with confusion counts; classes without a name are called by their number.
std::vector<ClassResult> class_results(const Evaluation& evaluation, const std::vector<std::string>& class_names);

/// A line a class: how many of its samples were right, how many of those taken for it are, and what they are taken for instead.
std::string class_table(const std::vector<ClassResult>& classes);
/// Rows are true classes, columns what they were taken for; "" for more classes than fit on a terminal.
std::string confusion_table(const Evaluation& evaluation, const std::vector<ClassResult>& classes);

}  // namespace cohort
