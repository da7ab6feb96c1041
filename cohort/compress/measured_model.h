#pragma once
// What it takes to use two models, beside one another.

#include <memory>

#include "cohort/compress/compression_result.h"
#include "cohort/data/source/source.h"
#include "cohort/infer/trained_file.h"
#include "cohort/models/graph/layer_graph.h"

namespace cohort {

/// Seconds and instructions of a forward on one thread, of 1 and of 64 of these samples. Both in turn, so that what else the machine does
/// hits both alike. About two seconds.
void measure_forwards(LayerGraph& original, LayerGraph& compressed, const DataSource& samples, CompressionResult& result);

/// Bytes of the heap that each model, as it is read from its file, holds for one sample: weights as the kernels want them, and the most
/// that a forward has at once beside them.
void measure_memory(const TrainedFile& original, const TrainedFile& compressed, const DataSource& samples, CompressionResult& result);

// What `cohort compress distill` measures once its student is trained: teacher and student side by side.

/// Error and loss of both on `validation`, each with the normalisation of its own training, bytes of their files, and seconds of a forward.
/// `threads` of the evaluations as evaluate_trained() has them. `method` and `out` are left to the caller.
CompressionResult compare_with_teacher(const TrainedFile& teacher, const TrainedFile& student,
                                       const std::shared_ptr<const DataSource>& validation, int threads);

}  // namespace cohort
