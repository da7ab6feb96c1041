#include "cohort/compress/prune.h"

#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/compress/compressed_content.h"
#include "cohort/compress/compression_result.h"
#include "cohort/compress/smaller_model.h"
#include "cohort/infer/evaluate_trained.h"
#include "cohort/infer/trained_file.h"
#include "cohort/job/specs/pruning.h"
#include "cohort/models/registry.h"
#include "cohort/train/model/batch_tensors.h"
#include "cohort/train/model/pruner.h"

namespace cohort {

std::string PruneRequest::how() const { return granularity == "2:4" ? granularity : concat(granularity, ":", sparsity); }

void check_prune_request(const PruneRequest& request) {
  const std::vector<std::string> known = {"weight", "2:4", "channel"};
  if (std::find(known.begin(), known.end(), request.granularity) == known.end())
    fail(ErrorCode::kBadInput, "--granularity ", quote_text(request.granularity), did_you_mean(request.granularity, known),
         ": expected one of ", join(known, " "));
  if (!(request.sparsity > 0 && request.sparsity < 1))
    fail(ErrorCode::kBadInput, "--sparsity ", request.sparsity, ": the part of the ", request.is_channel() ? "channels" : "weights",
         " that goes, above 0 and below 1, as 0.9");
  if (request.granularity == "2:4" && request.sparsity != 0.5)
    fail(ErrorCode::kBadInput, "--sparsity ", request.sparsity,
         " with --granularity 2:4: two of every four weights go, so it is 0.5; leave "
         "--sparsity out");
}

std::string pruned_specification(const TrainedFile& file, const DataShape& shape, double sparsity) {
  return smaller_specification(file.config().model, *restore_model(file, shape), sparsity);
}

void write_smaller_model(const TrainedFile& file, const DataDescription& trained, const DataSource& samples,
                         const std::string& specification, const std::string& out) {
  const DataShape shape = shape_of(trained);
  const std::shared_ptr<LayerGraph> model = restore_model(file, shape), smaller = build_model(specification, shape, file.config().seed);
  take_channels(*model, *smaller, input_batch(samples, 0, 2));
  CompressedContent content;
  const CompressionSource source{.model = smaller, .fresh = [&] { return build_model(specification, shape, 1); }};
  build_compressed(source, content);
  content.form.method = "channels that stay, not trained yet";
  FileMetadata metadata = metadata_of_export(file);
  metadata[exported::kModel] = specification;
  metadata.erase(exported::kValLoss);
  metadata.erase(exported::kValError);
  write_compressed_file(out, content, std::move(metadata));
}

void check_prunable(const TrainedFile& file, const DataShape& shape, const std::string& how) {
  prunable_tensors(*restore_model(file, shape), parse_pruning(how)->granularity);
}

namespace {

/// Elements of the matrices and kernels of a layer, and how many of them are zero.
std::pair<int64_t, int64_t> count_zeros(const torch::nn::Module& module) {
  int64_t all = 0, zeros = 0;
  for (const at::Tensor& tensor : module.parameters()) {
    if (tensor.dim() < 2) continue;
    all += tensor.numel();
    zeros += tensor.numel() - tensor.count_nonzero().item<int64_t>();
  }
  return {all, zeros};
}

CompressedLayerResult sparse_layer_result(const LayerGraph::Layer& layer, const CompressedContent& content) {
  CompressedLayerResult result{.layer = layer.name, .kind = layer.kind, .done = "unchanged"};
  if (!layer.module) return result;
  result.bytes = layer_bytes(content, layer.name);
  const auto [all, zeros] = count_zeros(*layer.module);
  if (all == 0) return result;
  result.sparsity = static_cast<double>(zeros) / static_cast<double>(all);
  if (zeros > 0) result.done = concat(with_commas(zeros), " of ", with_commas(all), " weights are zero");
  else result.done = "dense";
  return result;
}

/// Output channels or units: rows of the first matrix or kernel.
int64_t num_outputs(const torch::nn::Module& module) {
  for (const at::Tensor& tensor : module.parameters())
    if (tensor.dim() >= 2) return tensor.size(0);
  return 0;
}

CompressedLayerResult cut_layer_result(const LayerGraph::Layer& layer, const LayerGraph::Layer& before) {
  CompressedLayerResult result{.layer = layer.name, .kind = layer.kind, .done = "unchanged"};
  if (!layer.module) return result;
  result.bytes = module_bytes(layer.module.get());
  const int64_t kept = num_outputs(*layer.module), all = num_outputs(*before.module);
  if (kept < all) {
    result.sparsity = 1 - static_cast<double>(kept) / static_cast<double>(all);
    result.done = concat("keeps ", kept, " of ", all, layer.kind == "linear" ? " units" : " channels");
  } else if (result.bytes < module_bytes(before.module.get())) {
    result.done = "reads fewer channels";
  }
  return result;
}

std::vector<CompressedLayerResult> pruned_layer_results(const LayerGraph& original, const LayerGraph& model,
                                                        const CompressedContent& content, bool is_channel) {
  std::vector<CompressedLayerResult> results;
  for (size_t i = 0; i < model.layers().size(); ++i) {
    const LayerGraph::Layer &layer = model.layers()[i], &before = original.layers()[i];
    results.push_back(is_channel ? cut_layer_result(layer, before) : sparse_layer_result(layer, content));
    results.back().original_bytes = module_bytes(before.module.get());
  }
  return results;
}

}  // namespace

CompressionResult write_pruned(const TrainedFile& file, const TrainedFile& pruned, const DataDescription& trained,
                               const DataSource& validation, const PruneRequest& request, const std::string& out,
                               const std::function<void(const std::string&)>& progress) {
  at::NoGradGuard no_grad;
  check_compressed_name(out);
  use_threads_of_training(file, request.tuning.threads);
  const DataShape shape = shape_of(trained);
  const std::shared_ptr<LayerGraph> original = restore_model(file, shape), model = restore_model(pruned, shape);
  if (original->layers().size() != model->layers().size())
    fail(ErrorCode::kBadInput, pruned.path(), " holds another model than ", file.path());
  CompressionResult result{
      .method = "prune " + request.how(), .out = out, .step = pruned.step(), .validation_samples = validation.num_samples()};
  CompressedContent content = request.is_channel() ? CompressedContent() : compress_sparse(*model);
  const CompressionSource source{.model = model, .fresh = [&] { return restore_model(pruned, shape); }};
  const std::shared_ptr<LayerGraph> loaded = build_compressed(source, content);
  progress("validation data");
  const Evaluation before = evaluate_restored(file, *original, validation).found,
                   after = evaluate_restored(pruned, *loaded, validation).found;
  result.original = {.loss = before.loss, .error = before.error};
  result.compressed = {.loss = after.loss, .error = after.error};
  result.layers = pruned_layer_results(*original, *loaded, content, request.is_channel());
  progress("latency");
  measure_and_write({file, *original}, {pruned, *loaded}, content, validation, result);
  return result;
}

}  // namespace cohort
