#include "cohort/infer/trained_model.h"

#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/data/model/model_options.h"
#include "cohort/infer/compressed/compressed_model.h"
#include "cohort/infer/trained_file.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/models/graph/model_errors.h"
#include "cohort/models/loss/losses.h"
#include "cohort/models/registry.h"
#include "cohort/parallel/common/parameters.h"

namespace cohort {
/// Not by find_model(), which would suggest another name.
void check_is_known(const TrainedFile& file) {
  const std::string name = parse_model(file.config().model).name;
  if (registered_models().contains(name)) return;
  const std::string& plugin = file.config().plugin;
  fail(ErrorCode::kBadInput, file.given(), " was trained with the model ", name, ", which this program does not have; ",
       plugin.empty() ? "run the program that registers it, or give its plug-in" : concat("it came from the plug-in ", plugin, ": give it"),
       name_settings(" with --plugin FILE.so"));
}

std::shared_ptr<LayerGraph> restore_model(const TrainedFile& file, const DataShape& shape) {
  at::NoGradGuard no_grad;
  check_is_known(file);
  std::shared_ptr<LayerGraph> model = build_model(file.config().model, shape, file.config().seed);
  set_named_loss(*model, file.config().loss, shape);
  const std::vector<std::string> names = file.tensor_names();
  std::set<std::string> left(names.begin(), names.end());
  std::map<std::string, std::string> aliases;
  distinct_parameters(*model, &aliases);
  distinct_buffers(*model, &aliases);
  const auto read = [&](const std::string& name, DType dtype, const std::vector<int64_t>& sizes, void* destination) {
    file.read(name, dtype, sizes, destination);
    left.erase(name);
  };
  make_compressed(*model, file.compressed() ? *file.compressed() : CompressedForm(), read);
  for (const auto& [alias, name] : aliases) left.erase(alias);
  if (!left.empty())
    fail(ErrorCode::kBadInput, file.path(), " holds the tensor ", *left.begin(), ", which model ", file.config().model,
         " does not have here; it was trained by another model of that name");
  return model;
}

TrainedModel::TrainedModel(std::shared_ptr<LayerGraph> module, DataDescription data, std::string model, int64_t step)
    : module_(std::move(module)), data_(std::move(data)), model_(std::move(model)), step_(step) {}

at::Tensor TrainedModel::operator()(const at::Tensor& input) const {
  at::NoGradGuard no_grad;
  module_->eval();
  if (!input.defined() || input.dim() != static_cast<int64_t>(data_.shape.size()) + 1 ||
      input.sizes().slice(1) != at::IntArrayRef(data_.shape))
    fail(ErrorCode::kBadInput, module_->title(), " takes batches of samples of ", shape_text(data_.shape), ", and got ",
         describe_tensor(input));
  return module_->forward(input);
}

at::Tensor TrainedModel::normalised(const at::Tensor& raw) const {
  if (data_.mean.empty()) return raw.to(at::kFloat);
  // Broadcast against {samples, channels, ...}.
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
