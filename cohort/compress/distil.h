#pragma once
// What `cohort compress distill` measures once its student is trained: teacher and student side by side.

#include <memory>

#include "cohort/compress/compression_result.h"
#include "cohort/data/source/source.h"
#include "cohort/infer/trained_file.h"

namespace cohort {

/// Error and loss of both on `validation`, each with the normalisation of its own training, bytes of their files, and seconds of a forward.
/// `threads` of the evaluations as evaluate_trained() has them. `method` and `out` are left to the caller.
CompressionResult compare_with_teacher(const TrainedFile& teacher, const TrainedFile& student,
                                       const std::shared_ptr<const DataSource>& validation, int threads);

}  // namespace cohort
