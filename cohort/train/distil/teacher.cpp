#include "cohort/train/distil/teacher.h"

#include <algorithm>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/train/distil/kept_answers.h"

namespace cohort {

LayerTaps::LayerTaps(LayerGraph& model, const std::vector<std::string>& layers, const std::string& option)
    : outputs_(std::make_shared<std::vector<at::Tensor>>(layers.size())) {
  std::vector<std::string> known;
  for (const LayerGraph::Layer& layer : model.layers()) known.push_back(layer.name);
  for (size_t place = 0; place < layers.size(); ++place) {
    const auto found = std::find(known.begin(), known.end(), layers[place]);
    if (found == known.end())
      fail(ErrorCode::kBadInput, option, ": ", model.title(), " has no layer ", quote_text(layers[place]),
           did_you_mean(layers[place], known), "; it has ", join(known, ", "));
    const auto index = static_cast<size_t>(found - known.begin());
    const LayerGraph::Layer& layer = model.layers()[index];
    model.replace_layer(index, layer.module, [exact = layer.function, outputs = outputs_, place](const LayerGraph::Inputs& inputs) {
      at::Tensor output = exact(inputs);
      (*outputs)[place] = output.clone();  // The next layer may work in place.
      return output;
    });
  }
}

std::vector<at::Tensor> LayerTaps::take() const { return std::exchange(*outputs_, std::vector<at::Tensor>(outputs_->size())); }

namespace {

TeacherOpener& opener() {
  static TeacherOpener registered;
  return registered;
}

/// What reading said, with the option in front.
template <typename Action>
auto of_option(const Config& config, const Action& action) {
  try {
    return action();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadInput) throw;
    fail(ErrorCode::kBadInput, name_settings("--teacher "), config.teacher, ": ", error.what());
  }
}

}  // namespace

int64_t scores_of_sample(const DataShape& shape) { return shape.targets_per_sample() * shape.num_classes; }

bool register_teacher_opener(TeacherOpener registered) {
  opener() = registered;
  return true;
}

std::unique_ptr<Teacher> open_teacher(const Config& config, const DataSet& data) {
  return of_option(config, [&] { return opener().open(config.teacher, data); });
}

void check_teacher(const Config& config, const DataSet& data) {
  if (config.teacher.empty()) return;
  const DataShape& shape = data.train->shape();
  if (shape.has_numbers())
    fail(ErrorCode::kBadInput, name_settings("--teacher "), config.teacher, " is for classes, and these data have ",
         shape.labels ? "labels" : "numbers to predict", "; leave it out");
  if (config.teacher_answers == "cached" && config.augment != "none")
    fail(ErrorCode::kBadInput, name_settings("--teacher-answers cached with --augment "), config.augment,
         ": a picture is another one in every step, so no answer to it can be kept; use live");
  if ((config.teacher_answers == "cached" || config.teacher_answers == "beside") && !config.hint.empty())
    fail(ErrorCode::kBadInput, name_settings("--teacher-answers "), config.teacher_answers, name_settings(" with --hint "), config.hint,
         ": scores alone come so, and what layers give is asked for in every step; use live");
  const int64_t bytes = data.train->num_samples() * scores_of_sample(shape) * static_cast<int64_t>(sizeof(float));
  if (config.teacher_answers == "cached" && bytes > kMostKeptBytes)
    fail(ErrorCode::kBadInput, name_settings("--teacher-answers cached: "), with_commas(data.train->num_samples()), " samples with ",
         scores_of_sample(shape), " scores each are ", human_bytes(bytes), ", and at most ", human_bytes(kMostKeptBytes),
         " are kept; use live");
  of_option(config, [&] { opener().check(config, data); });
}

}  // namespace cohort
