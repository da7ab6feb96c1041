#pragma once
// What it takes to use two models, beside one another.

#include "cohort/compress/compression_result.h"
#include "cohort/data/source/source.h"
#include "cohort/infer/trained_file.h"

namespace cohort {

class LayerGraph;

/// Seconds and instructions of a forward on one thread, of 1 and of 64 of these samples. Both in turn, so that what else the machine does
/// hits both alike. About two seconds.
void measure_forwards(LayerGraph& original, LayerGraph& compressed, const DataSource& samples, CompressionResult& result);

/// Bytes of the heap that each model, as it is read from its file, holds for one sample: weights as the kernels want them, and the most
/// that a forward has at once beside them.
void measure_memory(const TrainedFile& original, const TrainedFile& compressed, const DataSource& samples, CompressionResult& result);

}  // namespace cohort
