#pragma once
// Checks whether a model computes other gradients if its batch is divided, as with plain batch norm, or a loss that is not a mean over its
// samples.

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
    kNotRepeated  ///< The whole batch, run twice in one process, gives different results.
  } answer = Answer::kNo;
  std::string tensor;     ///< "the gradient of hidden.weight": the largest difference, or for kUnknown the least certain one.
  double difference = 0;  ///< Relative to the tensor of the whole batch (2-norms).
  double explained = 0;   ///< The part of it that rounding explains.
  bool draws = false;     ///< Forward or backward drew from LibTorch's generator.
};

/// For the model, data and batch of `config`, divided by `layout`; in fp32 or better, whatever config.precision. Runs in a forked process,
/// which writes its answer to `path`; the calling process must have one thread. Error if that process fails.
DivisionMatters does_division_matter(const Config& config, const DataSet& data, const Layout& layout, const std::string& path);

}  // namespace cohort
