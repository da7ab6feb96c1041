#include "cohort/job/learning_rate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <numbers>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/setting_name.h"

namespace cohort {

double LearningRate::at(int64_t step, int64_t total_steps) const {
  if (step < warmup_steps) return rate * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  if (schedule == Schedule::kConstant) return rate;
  const double span = static_cast<double>(std::max<int64_t>(1, decay_steps > 0 ? decay_steps : total_steps - warmup_steps));
  const double done = std::min(1.0, static_cast<double>(step - warmup_steps) / span);
  const double shape = schedule == Schedule::kLinear ? 1 - done : 0.5 * (1 + std::cos(std::numbers::pi * done));
  return rate * (end_factor + (1 - end_factor) * shape);
}

LearningRate learning_rate(const Config& config) {
  using Schedule = LearningRate::Schedule;
  const std::string& name = config.schedule_lr;
  if (name != "constant" && name != "linear" && name != "cosine")
    fail(ErrorCode::kBadInput, name_settings("--schedule-lr: no schedule '"), name, "'; there are: constant linear cosine");
  return {.rate = effective_learning_rate(config),
          .schedule = name == "linear"   ? Schedule::kLinear
                      : name == "cosine" ? Schedule::kCosine
                                         : Schedule::kConstant,
          .warmup_steps = config.warmup_steps,
          .decay_steps = config.decay_steps,
          .end_factor = config.lr_end_factor};
}

// The rates come from short trainings (150 to 200 steps of 64 samples of Fashion-MNIST or of English text) on a grid of 5 per optimizer and
// family: near the best, on the smaller side for larger models and longer runs; checked with vgg11, resnet50 and gpt
// (docs/guide/configuration.md). Nesterov momentum takes the rates of momentum, AdamW those of Adam. AdamW has PyTorch's default weight
// decay, the others none.

namespace {

/// Per optimizer one rate per family, in the order of model_families().
using Rates = std::array<double, 6>;
const std::vector<std::pair<std::string, Rates>>& rates() {
  static const std::vector<std::pair<std::string, Rates>> table = {
      // fc, cnn, resnet, lstm, transformer, other
      {"sgd", {0.1, 0.1, 0.1, 1, 0.5, 0.1}},
      {"momentum", {0.03, 0.03, 0.03, 0.1, 0.1, 0.03}},
      {"nesterov", {0.03, 0.03, 0.03, 0.1, 0.1, 0.03}},
      {"adam", {0.001, 0.001, 0.001, 0.003, 0.003, 0.001}},
      {"adamw", {0.001, 0.001, 0.001, 0.003, 0.003, 0.001}},
  };
  return table;
}

}  // namespace

const std::vector<ModelFamily>& model_families() {
  static const std::vector<ModelFamily> families = {
      {"fc", {"fc", "mlp", "mlp-small"}},      {"cnn", {"cnn", "cnn-bench", "vgg11", "inception"}},
      {"resnet", {"resnet8", "resnet50"}},     {"lstm", {"lstm"}},
      {"transformer", {"transformer", "gpt"}}, {"other", {}}};
  return families;
}

double default_learning_rate(const std::string& optimizer, const std::string& model) {
  const std::string name = model.substr(0, model.find(':'));
  const auto row = std::find_if(rates().begin(), rates().end(), [&](const auto& each) { return each.first == optimizer; });
  const Rates& of_families = row == rates().end() ? rates().front().second : row->second;
  for (size_t i = 0; i < model_families().size(); ++i) {
    const std::vector<std::string>& models = model_families()[i].models;
    if (std::find(models.begin(), models.end(), name) != models.end()) return of_families[i];
  }
  return of_families.back();
}

double default_weight_decay(const std::string& optimizer) { return optimizer == "adamw" ? 0.01 : 0; }

double effective_learning_rate(const Config& config) {
  return config.lr == Config::kAuto ? default_learning_rate(config.optimizer, config.model) : config.lr;
}

double effective_weight_decay(const Config& config) {
  return config.weight_decay == Config::kAuto ? default_weight_decay(config.optimizer) : config.weight_decay;
}

Config with_defaults(Config config) {
  config.lr = effective_learning_rate(config);
  config.weight_decay = effective_weight_decay(config);
  return config;
}

std::string learning_rate_table() {
  std::string text = name_settings("Learning rate where --lr is not given, by --optimizer and --model:\n             ");
  char cell[32];
  for (const ModelFamily& family : model_families()) {
    std::snprintf(cell, sizeof cell, "%13s", family.name.c_str());
    text += cell;
  }
  for (const auto& [optimizer, of_families] : rates()) {
    std::snprintf(cell, sizeof cell, "\n  %-11s", optimizer.c_str());
    text += cell;
    for (const double rate : of_families) {
      std::snprintf(cell, sizeof cell, "%13g", rate);
      text += cell;
    }
  }
  text += "\n";
  for (const ModelFamily& family : model_families()) {
    if (family.models.size() < 2) continue;
    text += "  " + family.name + ":";
    for (const std::string& model : family.models) text += " " + model;
    text += "\n";
  }
  return text;
}

}  // namespace cohort
