#include "cohort/compress/prune/pruned_model.h"

#include <torch/csrc/autograd/grad_mode.h>

#include <memory>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/compress/compressed_file.h"
#include "cohort/compress/compressed_parts.h"
#include "cohort/compress/compression_checks.h"
#include "cohort/compress/measured_model.h"
#include "cohort/infer/evaluate_trained.h"
#include "cohort/infer/restore.h"
#include "cohort/infer/trained_file.h"

namespace cohort {
namespace {

int64_t bytes_of(const torch::nn::Module* module) {
  int64_t bytes = 0;
  if (!module) return 0;
  for (const std::vector<at::Tensor>& tensors : {module->parameters(), module->buffers()})
    for (const at::Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

/// Of the matrices and kernels of a layer: how many numbers, and how many are zero.
std::pair<int64_t, int64_t> count_zeros(const torch::nn::Module& module) {
  int64_t all = 0, zeros = 0;
  for (const at::Tensor& tensor : module.parameters()) {
    if (tensor.dim() < 2) continue;
    all += tensor.numel();
    zeros += tensor.numel() - tensor.count_nonzero().item<int64_t>();
  }
  return {all, zeros};
}

CompressedLayerResult of_weights(const LayerGraph::Layer& layer, const CompressedParts& parts) {
  CompressedLayerResult result{.layer = layer.name, .kind = layer.kind, .done = "as it was", .loss_increase = {}, .sparsity = {}};
  if (!layer.module) return result;
  for (const auto& [name, tensor] : parts.tensors)
    if (name.starts_with(layer.name + ".")) result.bytes += static_cast<int64_t>(tensor.nbytes());
  const auto [all, zeros] = count_zeros(*layer.module);
  if (all == 0) return result;
  result.sparsity = static_cast<double>(zeros) / static_cast<double>(all);
  if (zeros > 0) result.done = concat(with_commas(zeros), " of ", with_commas(all), " weights are zero");
  else result.done = "dense";
  return result;
}

/// Rows of the first matrix or kernel: what it makes.
int64_t num_outputs(const torch::nn::Module& module) {
  for (const at::Tensor& tensor : module.parameters())
    if (tensor.dim() >= 2) return tensor.size(0);
  return 0;
}

CompressedLayerResult of_channels(const LayerGraph::Layer& layer, const LayerGraph::Layer& before) {
  CompressedLayerResult result{.layer = layer.name, .kind = layer.kind, .done = "as it was", .loss_increase = {}, .sparsity = {}};
  if (!layer.module) return result;
  result.bytes = bytes_of(layer.module.get());
  const int64_t kept = num_outputs(*layer.module), all = num_outputs(*before.module);
  if (kept < all) {
    result.sparsity = 1 - static_cast<double>(kept) / static_cast<double>(all);
    result.done = concat("keeps ", kept, " of ", all, layer.kind == "linear" ? " units" : " channels");
  } else if (result.bytes < bytes_of(before.module.get())) {
    result.done = "reads fewer channels";
  }
  return result;
}

std::vector<CompressedLayerResult> layer_results(const LayerGraph& original, const LayerGraph& model, const CompressedParts& parts,
                                                 bool is_channel) {
  std::vector<CompressedLayerResult> results;
  for (size_t i = 0; i < model.layers().size(); ++i) {
    const LayerGraph::Layer &layer = model.layers()[i], &before = original.layers()[i];
    results.push_back(is_channel ? of_channels(layer, before) : of_weights(layer, parts));
    results.back().original_bytes = bytes_of(before.module.get());
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
  CompressionResult result{.method = "prune " + request.how(),
                           .out = out,
                           .step = pruned.step(),
                           .validation_samples = validation.num_samples(),
                           .original = {},
                           .compressed = {},
                           .layers = {}};
  CompressedParts parts = request.is_channel() ? CompressedParts() : sparse_parts(*model);
  parts.form.method = result.method;
  const CompressionSource source{.model = model, .facts = {}, .fresh = [&] { return restore_model(pruned, shape); }};
  const std::shared_ptr<LayerGraph> loaded = complete(source, parts);
  progress("validation data");
  const Evaluation before = evaluate_restored(file, *original, validation).found,
                   after = evaluate_restored(pruned, *loaded, validation).found;
  result.original.loss = before.loss, result.original.error = before.error;
  result.compressed.loss = after.loss, result.compressed.error = after.error;
  progress("latency");
  measure_forwards(*original, *loaded, validation, result);
  result.original.bytes = bytes_of_export(*original, metadata_of_export(file));
  result.layers = layer_results(*original, *loaded, parts, request.is_channel());
  FileMetadata metadata = metadata_of_export(pruned);
  metadata[exported::kValLoss] = finite_json(after.loss).dump();
  metadata[exported::kValError] = finite_json(after.error).dump();
  result.compressed.bytes = write_compressed_file(out, parts, std::move(metadata));
  measure_memory(file, TrainedFile::open(out), validation, result);
  return result;
}

}  // namespace cohort
