#pragma once
// Does a model compute something else because its batch is divided? Usual batch norm does, and a loss that is no mean over its samples.

#include <string>

#include "cohort/data/source/source.h"
#include "cohort/job/config.h"
#include "cohort/job/layout.h"

namespace cohort {

struct DivisionMatters {
  enum class Answer {
    kNo,
    kYes,
    kUnknown,
    kNotRepeated  ///< The same batch, whole, twice in one process: not the same either.
  } answer = Answer::kNo;
  std::string tensor;     ///< "the gradient of hidden.weight"; the one furthest away, or for kUnknown the one least certain.
  double difference = 0;  ///< Relative to the tensor of the whole batch (2-norms).
  double explained = 0;   ///< How much of that rounding explains.
  bool draws = false;     ///< Whether forward or backward took numbers from LibTorch's generator.
};

/// For the model, data and batch of `config`, divided as `layout` divides it; in fp32 or better, whatever config.precision. Works in a
/// forked process, which leaves its answer at `path`; the calling one must have one thread. Error where that process fails.
DivisionMatters does_division_matter(const Config& config, const DataSet& data, const Layout& layout, const std::string& path);

}  // namespace cohort
