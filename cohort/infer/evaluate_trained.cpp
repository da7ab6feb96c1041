// The training divided its samples in chunks and the chunks over ranks; each rank added up its own, and then the ranks' sums were added in
// their order. This process does the same additions: chunk c belongs to share c mod shares. Weights and kernels are the same, so the sums
// are the same bits wherever a forward on that many threads gives the same bits; only layers that ranks divided among them (tp) were
// computed in another order.
#include "cohort/infer/evaluate_trained.h"

#include <algorithm>
#include <memory>

#include "cohort/base/text/json.h"
#include "cohort/comm/compute_threads.h"
#include "cohort/infer/restore.h"
#include "cohort/infer/trained_data.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/train/model/evaluate.h"

namespace cohort {
namespace {

/// A number of what the training noted of its evaluations, between bounds.
int64_t noted(const TrainedFile& file, const char* key, int64_t fallback, int64_t least, int64_t most) {
  const auto found = file.evaluation().find(key);
  const bool is_number = found != file.evaluation().end() && found->is_number_integer();
  return std::clamp(is_number ? found->get<int64_t>() : fallback, least, most);
}

}  // namespace

void use_threads_of_training(const TrainedFile& file, int threads) {
  use_compute_threads(threads > 0 ? threads : static_cast<int>(noted(file, "threads", 0, 0, 1024)));
}

TrainedEvaluation evaluate_restored(const TrainedFile& file, LayerGraph& model, const DataSource& source, const std::string& metrics) {
  constexpr int64_t kMostClasses = 4096;  // The square of it in counts.
  const DataShape& shape = source.shape();
  Group alone;
  const EvaluationOptions options{
      .batch_size = noted(file, "chunk_samples", 250, 1, 1'000'000),
      .with_confusion = shape.kind == DataShape::Kind::kImage && !shape.has_numbers() && shape.num_classes <= kMostClasses,
      .metrics = named_metrics(metrics, shape),
      .num_shares = static_cast<int>(noted(file, "shares", 1, 1, 100'000))};
  return {evaluate(model, source, alone, options), static_cast<bool>(model.loss())};
}

TrainedEvaluation evaluate_trained(const TrainedFile& file, const DataDescription& trained, const DataSource& source, int threads,
                                   const std::string& metrics) {
  use_threads_of_training(file, threads);
  return evaluate_restored(file, *restore_model(file, shape_of(trained)), source, metrics);
}

}  // namespace cohort
