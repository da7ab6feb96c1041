#include "cohort/infer/trained_model.h"

#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/infer/restore.h"
#include "cohort/infer/trained_data.h"
#include "cohort/infer/trained_file.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/models/graph/model_errors.h"

namespace cohort {

TrainedModel::TrainedModel(std::shared_ptr<LayerGraph> module, DataDescription data, std::string model, int64_t step)
    : module_(std::move(module)), data_(std::move(data)), model_(std::move(model)), step_(step) {}

at::Tensor TrainedModel::operator()(const at::Tensor& input) const {
  at::NoGradGuard no_grad;
  module_->eval();
  if (!input.defined() || input.dim() != static_cast<int64_t>(data_.shape.size()) + 1 ||
      input.sizes().slice(1) != at::IntArrayRef(data_.shape))
    fail(ErrorCode::kBadInput, module_->title(), " takes batches of samples of ", shape_text(data_.shape), ", and got ",
         describe_form(input));
  return module_->forward(input);
}

at::Tensor TrainedModel::normalised(const at::Tensor& raw) const {
  if (data_.mean.empty()) return raw.to(at::kFloat);
  // Per channel where there are several: against {samples, channels, ...}.
  std::vector<int64_t> sizes(data_.shape.size(), 1);
  sizes.front() = static_cast<int64_t>(data_.mean.size());
  const at::TensorOptions options = at::TensorOptions().dtype(at::kDouble).device(raw.device());
  return ((raw.to(at::kDouble) - at::tensor(data_.mean, options).view(sizes)) / at::tensor(data_.deviation, options).view(sizes))
      .to(at::kFloat);
}

static TrainedModel trained_model_of(const TrainedFile& file) {
  const DataDescription data = description_of(file);
  return {restore_model(file, shape_of(data)), data, file.config().model, file.step()};
}

TrainedModel load(const std::string& path, const std::string& which) { return trained_model_of(TrainedFile::open(path, which)); }

TrainedModel load_compressed(const std::string& path) {
  const TrainedFile file = TrainedFile::open(path);
  if (!file.compressed())
    fail(ErrorCode::kBadInput, path, " is not compressed; load() takes it, and `cohort compress quantize` makes a compressed file of it");
  return trained_model_of(file);
}

}  // namespace cohort
