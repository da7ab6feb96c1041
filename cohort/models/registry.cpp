#include "cohort/models/registry.h"

#include <torch/utils.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/data/model/model_options.h"
#include "cohort/models/families.h"
#include "cohort/models/graph/model_errors.h"
#include "cohort/models/loss/binary_cross_entropy.h"
#include "cohort/models/loss/mean_squared_error.h"

namespace cohort {
namespace {

/// The table: built-in families, then whatever was registered. Made on first use, for registrars run before main.
std::map<std::string, ModelEntry>& mutable_models() {
  static std::map<std::string, ModelEntry> models = [] {
    std::map<std::string, ModelEntry> built_in;
    for (const auto family :
         {families::fc, families::cnn, families::resnet8, families::resnet50, families::vgg11, families::inception, families::lstm,
          families::transformer, families::mlp_small, families::mlp, families::cnn_bench, families::gpt}) {
      ModelEntry entry = family();
      built_in.emplace(entry.name, std::move(entry));
    }
    return built_in;
  }();
  return models;
}

/// What a factory throws names neither the model nor the data.
BuiltModel make(const ModelEntry& entry, const ModelOptions& options) {
  try {
    return entry.factory(options);
  } catch (const std::exception& error) {
    if (!is_misfit(error) && is_of_user(error))
      fail(ErrorCode::kBadInput, "model ", entry.name, ": its factory failed (", quote(error), ")");
    if (!is_misfit(error)) throw;
    const DataShape& data = options.data();
    const bool is_text = data.kind == DataShape::Kind::kText;
    std::string sizes;
    for (const int64_t size : data.input) sizes += concat(sizes.empty() ? "" : ", ", size);
    fail(ErrorCode::kBadInput, "model ", entry.name, ": its factory failed for samples of (", sizes, ")",
         is_text ? " bytes of text" : " numbers", " and ", data.num_classes, is_text ? " byte values" : " classes",
         "; make its layers from options.data(), or give it data of the kind that it is made for (", quote(error), ")");
  }
}

}  // namespace

const ModelEntry& find_model(const std::string& name) {
  const auto& models = registered_models();
  if (const auto found = models.find(name); found != models.end()) return found->second;
  std::vector<std::string> names;
  std::string list;
  for (const auto& [known, entry] : models) {
    names.push_back(known);
    list += " " + known;
  }
  fail(ErrorCode::kBadInput, "there is no model '", name, "'", did_you_mean(name, names), "; models:", list);
}

void register_model(const std::string& name, const std::string& help, ModelFactory factory) {
  if (name.empty() || name.find_first_of(":,= \t\n") != std::string::npos) {
    fail(ErrorCode::kBadInput, "a model cannot be registered as '", name, "': a name is not empty and holds no ':', ',', '=' or space");
  }
  if (!factory) fail(ErrorCode::kBadInput, "model ", name, " cannot be registered without a factory");
  if (!mutable_models().emplace(name, ModelEntry{name, help, std::move(factory)}).second) {
    fail(ErrorCode::kBadInput, "model ", name, " cannot be registered: the name is taken");
  }
}

const std::map<std::string, ModelEntry>& registered_models() { return mutable_models(); }

std::shared_ptr<LayerGraph> build_model(const std::string& specification, const DataShape& data, uint64_t seed) {
  ModelSpecification parsed = parse_model(specification);
  const ModelEntry& entry = find_model(parsed.name);
  const ModelOptions options(data, std::move(parsed.values));
  // Modules draw their initial values from the process's one generator: ranks that are threads take turns.
  static std::recursive_mutex generator_mutex;  // A factory may build another registered model in its own.
  const std::lock_guard lock(generator_mutex);
  torch::manual_seed(seed);
  BuiltModel model = make(entry, options);
  options.check_all_used(parsed.name);
  if (!model.graph || model.graph->layers().empty()) fail(ErrorCode::kBadInput, "model ", parsed.name, ": its factory made no layers");
  model.graph->set_title("model " + parsed.name);
  if (data.regression && !model.graph->loss()) model.graph->set_loss(mean_squared_error, "mse");
  if (data.labels && !model.graph->loss()) model.graph->set_loss(binary_cross_entropy, "binary");
  return std::move(model.graph);
}

}  // namespace cohort
