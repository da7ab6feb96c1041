#include "cohort/data/split.h"

#include <algorithm>

#include "cohort/base/fail.h"

namespace cohort {

int64_t num_validation_samples(const std::string& what, int64_t num_samples, const DataOptions& options) {
  const int64_t wanted = options.validation_samples;
  if (wanted < 0) fail(ErrorCode::kBadInput, "validation samples: expected at least 0, found ", wanted);
  if (num_samples < 2)
    fail(ErrorCode::kBadInput, what, ": expected at least 2 samples (one to train on, one for validation), found ", num_samples);
  if (wanted >= num_samples) {
    fail(ErrorCode::kBadInput, what, " has ", num_samples, " samples: expected at most ", num_samples - 1, " for validation, found ",
         wanted);
  }
  if (wanted > 0) return wanted;
  return num_samples >= 55000 ? 5000 : std::max<int64_t>(1, num_samples / 10);
}

void resize_batch(Batch& batch, const DataShape& shape, int64_t num_samples) {
  const bool text = shape.kind == DataShape::Kind::kText;
  const size_t elements = static_cast<size_t>(num_samples * shape.input_elements());
  batch.num_samples = num_samples;
  batch.values.resize(text ? 0 : elements);
  batch.tokens.resize(text ? elements : 0);
  batch.targets.resize(static_cast<size_t>(num_samples * shape.targets_per_sample()));
}

void check_index(int64_t index, int64_t num_samples) {
  if (index < 0 || index >= num_samples) fail(ErrorCode::kFailed, "sample ", index, " was asked for, but there are ", num_samples);
}

}  // namespace cohort
