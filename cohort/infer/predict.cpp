#include "cohort/infer/predict.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cstdio>
#include <tuple>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/comm/compute_threads.h"
#include "cohort/infer/restore.h"
#include "cohort/infer/trained_data.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/models/graph/model_errors.h"

namespace cohort {
namespace {

bool is_text(const DataDescription& description) { return description.input == DataDescription::Input::kText; }

at::Tensor batch_of(const DataDescription& description, const std::vector<NamedInput>& inputs) {
  std::vector<int64_t> sizes{std::ssize(inputs)};
  sizes.insert(sizes.end(), description.shape.begin(), description.shape.end());
  at::Tensor batch = at::empty(sizes, is_text(description) ? at::kLong : at::kFloat);
  const auto fill = [&](auto* to, const auto& values_of) {
    for (const NamedInput& input : inputs) to = std::copy(values_of(input).begin(), values_of(input).end(), to);
  };
  if (is_text(description)) fill(batch.data_ptr<int64_t>(), [](const NamedInput& input) -> const auto& { return input.encoded.tokens; });
  else fill(batch.data_ptr<float>(), [](const NamedInput& input) -> const auto& { return input.encoded.values; });
  return batch;
}

std::vector<LikelyClass> likeliest(const at::Tensor& odds, int64_t count) {
  std::vector<LikelyClass> classes;
  for (const double* p = odds.const_data_ptr<double>(); std::ssize(classes) < odds.numel(); ++p)
    classes.push_back({std::ssize(classes), *p});
  const auto kept = classes.begin() + std::min(count, std::ssize(classes));
  std::partial_sort(classes.begin(), kept, classes.end(), [](const LikelyClass& a, const LikelyClass& b) {
    return a.probability != b.probability ? a.probability > b.probability : a.label < b.label;
  });
  classes.erase(kept, classes.end());
  return classes;
}

}  // namespace

struct Predictor::State {
  DataDescription description;
  std::shared_ptr<LayerGraph> model;
};

Predictor::Predictor(const TrainedFile& file, DataDescription description, int threads) {
  use_compute_threads(threads);
  std::shared_ptr<LayerGraph> model = restore_model(file, shape_of(description));
  state_ = std::make_unique<State>(State{std::move(description), std::move(model)});
}

Predictor::~Predictor() = default;

std::vector<Prediction> Predictor::predict(const std::vector<NamedInput>& inputs, int64_t num_classes) {
  at::NoGradGuard no_grad;
  const DataDescription& description = state_->description;
  const auto count = std::ssize(inputs);
  const at::Tensor output = state_->model->forward(batch_of(description, inputs)).to(at::kDouble);
  const int64_t positions = is_text(description) ? description.shape.front() : 1;
  if (output.numel() != count * positions * description.num_outputs ||
      (!description.regression && !description.labels && output.size(-1) != description.num_outputs))
    fail(ErrorCode::kBadInput, state_->model->title(), " answers ", describe_form(output), " for ", count, " samples, and not ",
         description.num_outputs,
         description.regression ? " numbers each"
         : description.labels   ? " scores of labels each"
                                : " scores of classes each",
         ", so it predicts nothing");
  std::vector<Prediction> predictions(inputs.size());
  if (description.regression || description.labels) {
    const at::Tensor numbers = (description.labels ? at::sigmoid(output) : output).reshape({count, description.num_outputs}).contiguous();
    const double* at = numbers.data_ptr<double>();
    for (Prediction& prediction : predictions)
      for (int64_t target = 0; target < description.num_outputs; ++target, ++at)
        prediction.values.push_back(description.labels ? *at : decode_target(description, static_cast<size_t>(target), *at));
    return predictions;
  }
  const at::Tensor scores = output.reshape({count, positions, description.num_outputs});
  for (int64_t i = 0; i < count; ++i) {
    const int64_t place = is_text(description) ? inputs[static_cast<size_t>(i)].num_bytes - 1 : 0;
    predictions[static_cast<size_t>(i)].classes = likeliest(at::softmax(scores[i][place], -1).contiguous(), num_classes);
  }
  return predictions;
}

std::string class_name(const DataDescription& description, int64_t label) {
  if (static_cast<size_t>(label) < description.class_names.size()) return description.class_names[static_cast<size_t>(label)];
  if (!is_text(description)) return std::to_string(label);
  if (description.vocabulary) return printable(description.vocabulary->bytes_of(static_cast<Token>(label)));
  if (label > 32 && label < 127) return std::string(1, static_cast<char>(label));
  if (label == 32) return " ";
  char out[8];
  std::snprintf(out, sizeof out, "\\x%02x", static_cast<unsigned>(label));
  return out;
}

}  // namespace cohort
