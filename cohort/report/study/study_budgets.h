#pragma once
// Budgets of figures 9 to 11, where they are not chosen. Torch-free.

#include <cstdint>
#include <vector>

namespace cohort::report {

/// An empty list: chosen by what the study has.
struct StudyBudgets {
  std::vector<int64_t> steps;
  std::vector<double> epochs;  ///< Passes over the training data.
};

}  // namespace cohort::report
