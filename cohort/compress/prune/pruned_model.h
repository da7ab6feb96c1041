#pragma once
// A pruned model beside the one that it came from: what was done, what it cost, and the file.

#include <functional>
#include <string>

#include "cohort/compress/compression_result.h"
#include "cohort/compress/prune/prune_request.h"
#include "cohort/data/source/source.h"
#include "cohort/infer/trained_file.h"

namespace cohort {

/// `pruned`: what the fine-tuning of `file` left. Writes `out` (docs/formats/compressed.md), in one piece and only when all is measured:
/// matrices without their zeros, or the smaller model. `progress` is told what is done now. Errors as quantise() has them.
CompressionResult write_pruned(const TrainedFile& file, const TrainedFile& pruned, const DataDescription& trained,
                               const DataSource& validation, const PruneRequest& request, const std::string& out,
                               const std::function<void(const std::string&)>& progress);

}  // namespace cohort
