#include "cohort/infer/predict.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/verb.h"
#include "cohort/cli/trained/trained.h"
#include "cohort/infer/trained_file.h"

namespace cohort {
namespace {

/// A CSV field, quoted by RFC 4180.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos && !text.starts_with(' ') && !text.ends_with(' ')) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

std::string number_text(double value) { return Json(value).dump(); }

std::string target_name(const DataDescription& description, size_t target) {
  const std::string& name = description.targets.at(target).name;
  return name.empty() ? concat("value", target) : name;
}

/// The labels with a probability above one half.
std::vector<std::string> labels_of(const DataDescription& description, const Prediction& prediction) {
  std::vector<std::string> names;
  for (size_t label = 0; label < prediction.values.size(); ++label)
    if (prediction.values[label] > 0.5) names.push_back(class_name(description, static_cast<int64_t>(label)));
  return names;
}

std::string csv_header(const DataDescription& description, int64_t num_classes) {
  if (description.labels) {
    std::string line = "input,labels";
    for (int64_t label = 0; label < description.num_outputs; ++label) line += "," + csv_field(class_name(description, label));
    return line + "\n";
  }
  if (!description.regression) {
    std::string line = "input,class,probability";
    for (int64_t i = 2; i <= num_classes; ++i) line += concat(",class_", i, ",probability_", i);
    return line + "\n";
  }
  if (description.num_outputs == 1) return "input,value\n";
  std::string line = "input";
  for (size_t target = 0; target < description.targets.size(); ++target) line += "," + csv_field(target_name(description, target));
  return line + "\n";
}

std::string csv_line(const DataDescription& description, const std::string& input, const Prediction& prediction) {
  std::string line = csv_field(input);
  if (description.labels) line += "," + csv_field(join(labels_of(description, prediction), "+"));
  for (const LikelyClass& one : prediction.classes)
    line += concat(",", csv_field(class_name(description, one.label)), ",", number_text(one.probability));
  for (const double value : prediction.values) line += "," + number_text(value);
  return line + "\n";
}

std::string json_line(const DataDescription& description, const std::string& input, const Prediction& prediction) {
  Json line{{"input", input}};
  if (description.labels) {
    line["labels"] = labels_of(description, prediction);
    for (size_t label = 0; label < prediction.values.size(); ++label)
      line["probabilities"][class_name(description, static_cast<int64_t>(label))] = finite_json(prediction.values[label]);
  } else if (!description.regression) {
    line["class"] = class_name(description, prediction.classes.front().label);
    line["probability"] = prediction.classes.front().probability;
    if (prediction.classes.size() > 1)
      for (const LikelyClass& one : prediction.classes)
        line["classes"].push_back({{"class", class_name(description, one.label)}, {"probability", one.probability}});
  } else if (prediction.values.size() == 1) {
    line["value"] = finite_json(prediction.values.front());
  } else {
    for (size_t target = 0; target < prediction.values.size(); ++target)
      line["values"][target_name(description, target)] = finite_json(prediction.values[target]);
  }
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

void check_finite(const std::string& input, const Prediction& prediction) {
  const bool is_finite = prediction.classes.empty()
                             ? std::all_of(prediction.values.begin(), prediction.values.end(), [](double v) { return std::isfinite(v); })
                             : std::isfinite(prediction.classes.front().probability);
  if (!is_finite) fail(ErrorCode::kBadInput, input, ": the prediction is not finite: numbers of this input are too large for the model");
}

/// Prints all predictions or none: only after the last input has been read.
int run_predict(const Arguments& arguments) {
  const TrainedFile file = open_trained(arguments, "predict");
  if (arguments.positional.size() < 2)
    fail(ErrorCode::kBadInput, "predict: no inputs given; give one INPUT or more after ", file.given(), "; see `cohort predict -h`");
  const DataDescription description = description_of(file);
  const InputSource next_input = open_inputs(description, {arguments.positional.begin() + 1, arguments.positional.end()}, std::cin);
  Predictor predictor(file, description, arguments.config.threads);
  const auto batch = static_cast<size_t>(arguments.integer_option("batch", 64, 1, 1'000'000));
  if ((description.regression || description.labels) && arguments.options.contains("top"))
    fail(ErrorCode::kBadInput, "predict: --top would do nothing: ", file.given(), " predicts ",
         description.labels ? "labels, of which each gets its probability" : "numbers, not classes", "; leave it out");
  const int64_t num_classes = std::min(arguments.integer_option("top", 1, 1, 1'000'000), description.num_outputs);
  std::string out = arguments.config.json ? "" : csv_header(description, num_classes);
  std::vector<NamedInput> inputs;
  const auto predict = [&] {
    const std::vector<Prediction> predictions = predictor.predict(inputs, num_classes);
    for (size_t i = 0; i < inputs.size(); ++i) {
      check_finite(inputs[i].name, predictions[i]);
      out += (arguments.config.json ? json_line : csv_line)(description, inputs[i].name, predictions[i]);
    }
    inputs.clear();
  };
  for (NamedInput input; next_input(input);) {
    inputs.push_back(std::move(input));
    if (inputs.size() == batch) predict();
  }
  if (!inputs.empty()) predict();
  std::fwrite(out.data(), 1, out.size(), stdout);
  return 0;
}

}  // namespace

Verb predict_verb() {
  return {
      .name = "predict",
      .summary = "What a trained model says of pictures, rows of a table, text or tensors: CSV, or JSON lines with --json.",
      .examples = {"cohort train --model cnn --data fashion-mnist --steps 100 --run runs/x",
                   "cohort predict runs/x /usr/share/datasets/fashion-mnist/t10k-images-idx3-ubyte.gz",
                   "cohort train --model transformer --data text:/usr/share/common-licenses --optimizer adamw --steps 100 --run runs/text",
                   "cohort predict runs/text 'This program is fre' 'You may cop' --top 3 --json",
                   "echo 'This program is fre' | cohort predict runs/text --checkpoint best -"},
      .positional_help =
          "run folder (or one of its checkpoints) or FILE.safetensors, then inputs: picture files, IDX files, CSV files with a header, "
          ".npy files, texts; - reads standard input",
      .settings = {"plugin", "threads", "json"},
      .most_words = 1'000'000,
      .options = {{"batch", "N", "inputs that go through the model at once (default 64)"},
                  {"top", "K", "the K likeliest classes of each (default 1)"},
                  checkpoint_option()},
      .run = run_predict};
}

}  // namespace cohort
