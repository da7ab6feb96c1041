#include "cohort/compress/channels/smaller_file.h"

#include <memory>
#include <utility>

#include "cohort/compress/channels/smaller_model.h"
#include "cohort/compress/compressed_file.h"
#include "cohort/compress/compressed_parts.h"
#include "cohort/infer/restore.h"
#include "cohort/infer/trained_file.h"
#include "cohort/job/specs/pruning.h"
#include "cohort/models/registry.h"
#include "cohort/train/model/batch_tensors.h"
#include "cohort/train/pruning/prunable.h"

namespace cohort {

std::string smaller_model_of(const TrainedFile& file, const DataShape& shape, double sparsity) {
  return smaller_specification(file.config().model, *restore_model(file, shape), sparsity);
}

void write_smaller_model(const TrainedFile& file, const DataDescription& trained, const DataSource& samples,
                         const std::string& specification, const std::string& out) {
  const DataShape shape = shape_of(trained);
  const std::shared_ptr<LayerGraph> model = restore_model(file, shape), smaller = build_model(specification, shape, file.config().seed);
  take_channels(*model, *smaller, input_batch(samples, 0, 2));
  CompressedParts parts;
  const CompressionSource source{.model = smaller, .facts = {}, .fresh = [&] { return build_model(specification, shape, 1); }};
  complete(source, parts);
  parts.form.method = "channels that stay, not trained yet";
  FileMetadata metadata = metadata_of_export(file);
  metadata[exported::kModel] = specification;
  metadata.erase(exported::kValLoss);
  metadata.erase(exported::kValError);
  write_compressed_file(out, parts, std::move(metadata));
}

void check_has_matrices(const TrainedFile& file, const DataShape& shape, const std::string& how) {
  prunable_tensors(*restore_model(file, shape), parse_pruning(how)->granularity);
}

}  // namespace cohort
