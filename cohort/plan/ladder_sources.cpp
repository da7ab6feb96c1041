// Profiles for the last fallback options: shorter inputs and smaller models.
//
// Built-in models have profiles from shapes (analytic_profile.h). A measured profile is scaled: each cost of a layer by the ratio that
// shapes predict for the other inputs; where the layers differ, shapes are used with all seconds scaled by measured / predicted seconds of
// the unchanged model.

#include "cohort/plan/ladder.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/data/model/model_options.h"
#include "cohort/plan/profile/analytic_profile.h"
#include "cohort/plan/profile/shape_graph.h"

namespace cohort {
namespace {

constexpr int kMostHalvings = 6;
constexpr int64_t kLeastContext = 4, kLeastSide = 8;

/// A size of a model that may be halved, with its default.
struct Size {
  const char* key;
  double usual;
  double least;  ///< Below 1: any number; otherwise integers.
};
const std::map<std::string, std::vector<Size>>& sizes_of_models() {
  static const std::map<std::string, std::vector<Size>> kSizes = {
      {"fc", {{"layers", 1, 1}, {"hidden", 1024, 1}}},
      {"cnn", {{"width", 1, 0.02}}},
      {"resnet8", {{"width", 16, 1}}},
      {"resnet50", {{"width", 64, 1}}},
      {"vgg11", {{"width", 64, 1}}},
      {"inception", {{"blocks", 2, 1}, {"width", 16, 1}}},
      {"lstm", {{"hidden", 256, 1}}},
      {"transformer", {{"layers", 2, 1}, {"width", 64, 1}}},
      {"mlp", {{"width", 1024, 1}}},
      {"mlp-small", {{"width", 128, 1}}},
      {"gpt", {{"layers", 4, 1}, {"width", 256, 1}}},
  };
  return kSizes;
}

std::string text_of(const ModelSpecification& model) {
  std::vector<std::string> pairs;
  for (const auto& [key, value] : model.values) pairs.push_back(concat(key, "=", value));
  return pairs.empty() ? model.name : concat(model.name, ":", join(pairs, ","));
}

/// Scales measured profiles by what shapes predict for other inputs and models.
class Scaling {
 public:
  Scaling(const Config& config, const SearchRequest& request)
      : model_(config.model),
        options_{.data = config.data, .image_size = config.image_size, .context = config.context},
        measured_(request.problem.profile),
        cluster_(request.problem.cluster),
        is_measured_(!measured_.measured_on.empty()) {
    const auto& families = analytic_families();
    const auto family =
        std::find_if(families.begin(), families.end(), [&](const AnalyticFamily& each) { return each.name == parse_model(model_).name; });
    is_text_ = family != families.end() && family->is_text;
    if (!is_text_) options_.context = 0;
    if (!is_measured_ && !is_given(config, *find_setting("data"))) options_.data = "";
    for (const ProfilePoint& point : measured_.points)
      if (std::find(options_.micro_batches.begin(), options_.micro_batches.end(), point.micro_batch) == options_.micro_batches.end())
        options_.micro_batches.push_back(point.micro_batch);
  }

  bool is_text() const { return is_text_; }
  bool is_measured() const { return is_measured_; }
  const std::string& model() const { return model_; }
  const AnalyticOptions& options() const { return options_; }
  /// The profile of the unchanged model. Error(kBadInput) where its shapes are unknown.
  ModelProfile shapes() const { return analytic_profile(model_, cluster_, options_); }

  ModelProfile profile(const std::string& model, const AnalyticOptions& options) const {
    ModelProfile other = analytic_profile(model, cluster_, options);
    if (!is_measured_) return other;
    const ModelProfile now = shapes();
    other.measured_on = measured_.measured_on;
    other.sample_granularity = measured_.sample_granularity;
    const bool same_layers = other.layers.size() == measured_.layers.size() && now.layers.size() == measured_.layers.size();
    if (same_layers) other.edges = measured_.edges, other.tied = measured_.tied;
    std::vector<ProfilePoint> points;
    for (ProfilePoint& point : other.points) {
      const ProfileKey key{point.device, point.precision, point.tp, point.micro_batch};
      if (!has_points(measured_, key) || !has_points(now, key)) continue;
      const Profile measured = profile_at(measured_, key), from = profile_at(now, key);
      if (same_layers) scale(point, measured, from);
      else scale_seconds(point, measured.seconds() / std::max(1e-12, from.seconds()));
      points.push_back(std::move(point));
    }
    other.points = std::move(points);
    if (same_layers)
      for (size_t i = 0; i < other.layers.size(); ++i) {
        other.layers[i].output_kept = measured_.layers[i].output_kept;
        other.layers[i].tensor_parts = measured_.layers[i].tensor_parts;
        other.layers[i].num_tensor_exchanges = measured_.layers[i].num_tensor_exchanges;
      }
    return other;
  }

 private:
  static void scale_seconds(ProfilePoint& point, double ratio) {
    for (LayerCost& cost : point.layers)
      cost.forward_seconds *= ratio, cost.backward_input_seconds *= ratio, cost.backward_weight_seconds *= ratio;
  }
  static void scale(ProfilePoint& point, const Profile& measured, const Profile& from) {
    for (size_t i = 0; i < point.layers.size(); ++i) {
      LayerCost& cost = point.layers[i];
      const auto ratio = [](double to, double now) { return now > 0 ? to / now : 1; };
      const auto seconds = [&](double LayerCost::* to, double LayerProfile::* its) {
        cost.*to = measured.layers[i].*its * ratio(cost.*to, from.layers[i].*its);
      };
      seconds(&LayerCost::forward_seconds, &LayerProfile::forward_seconds);
      seconds(&LayerCost::backward_input_seconds, &LayerProfile::backward_input_seconds);
      seconds(&LayerCost::backward_weight_seconds, &LayerProfile::backward_weight_seconds);
      const double of_output = ratio(static_cast<double>(cost.output_bytes), static_cast<double>(from.layers[i].output_bytes));
      const auto bytes = [&](int64_t LayerCost::* to, int64_t LayerProfile::* its) {
        const int64_t now = from.layers[i].*its;
        const double its_ratio = now > 0 ? ratio(static_cast<double>(cost.*to), static_cast<double>(now)) : of_output;
        cost.*to = static_cast<int64_t>(std::ceil(static_cast<double>(measured.layers[i].*its) * its_ratio));
      };
      bytes(&LayerCost::stash_bytes, &LayerProfile::stash_bytes);
      bytes(&LayerCost::working_bytes, &LayerProfile::working_bytes);
      bytes(&LayerCost::output_bytes, &LayerProfile::output_bytes);
    }
  }

  std::string model_;
  AnalyticOptions options_;
  ModelProfile measured_;
  Cluster cluster_;
  bool is_measured_, is_text_ = false;
};
using SharedScaling = std::shared_ptr<const Scaling>;

FallbackVariants shorter_context(const SharedScaling& scaling) {
  FallbackVariants out{.name = "shorter context"};
  ModelSpecification model = parse_model(scaling->model());
  const auto in_model = model.values.find("context");
  int64_t context = scaling->options().context;
  if (in_model != model.values.end()) context = parse_integer(in_model->second).value_or(context);
  for (int halving = 0; halving < kMostHalvings && context / 2 >= kLeastContext; ++halving) {
    context /= 2;
    if (in_model != model.values.end()) {
      in_model->second = std::to_string(context);
      out.variants.push_back({"--model " + shell_quoted(text_of(model)),
                              [scaling, text = text_of(model)] { return scaling->profile(text, scaling->options()); }});
    } else {
      out.variants.push_back({concat("--context ", context), [scaling, context] {
                                AnalyticOptions options = scaling->options();
                                options.context = context;
                                return scaling->profile(scaling->model(), options);
                              }});
    }
  }
  return out;
}

/// The side of pictures whose size follows from the name of the data.
std::optional<int64_t> side_of_pictures(const AnalyticOptions& options) {
  const std::string name = options.data.substr(0, options.data.find(':'));
  if (name == "synthetic" || name.empty()) return std::nullopt;
  if (options.image_size > 0) return options.image_size;
  if (name == "fashion-mnist" || name == "mnist") return 28;
  return name == "cifar10" ? std::optional<int64_t>(32) : std::nullopt;
}

FallbackVariants smaller_pictures(const SharedScaling& scaling) {
  FallbackVariants out{.name = "smaller pictures"};
  const std::optional<int64_t> side = side_of_pictures(scaling->options());
  for (const double part : {0.75, 0.5, 0.375, 0.25}) {
    const auto smaller = side ? static_cast<int64_t>(part * static_cast<double>(*side)) : 0;
    if (smaller < kLeastSide) break;
    out.variants.push_back({concat("--image-size ", smaller), [scaling, smaller] {
                              AnalyticOptions options = scaling->options();
                              options.image_size = smaller;
                              return scaling->profile(scaling->model(), options);
                            }});
  }
  return out;
}

std::vector<FallbackVariants> smaller_models(const SharedScaling& scaling) {
  std::vector<FallbackVariants> out;
  const ModelSpecification model = parse_model(scaling->model());
  const auto found = sizes_of_models().find(model.name);
  if (found == sizes_of_models().end()) return out;
  for (const Size& size : found->second) {
    FallbackVariants one{.name = concat("fewer ", size.key), .is_last_resort = true};
    if (size.key != std::string("layers") && size.key != std::string("blocks")) one.name = concat("smaller ", size.key);
    ModelSpecification smaller = model;
    const auto typed = model.values.find(size.key);
    double value = typed == model.values.end() ? size.usual : parse_number(typed->second).value_or(size.usual);
    for (int halving = 0; halving < kMostHalvings && value / 2 >= size.least; ++halving) {
      value = size.least < 1 ? value / 2 : std::floor(value / 2);
      smaller.values[size.key] = concat(value);
      one.variants.push_back({"--model " + shell_quoted(text_of(smaller)),
                              [scaling, text = text_of(smaller)] { return scaling->profile(text, scaling->options()); }});
    }
    if (!one.variants.empty()) out.push_back(std::move(one));
  }
  return out;
}

}  // namespace

FallbackSources ladder_sources(const Config& config, const SearchRequest& request) {
  FallbackSources out;
  const auto scaling = std::make_shared<const Scaling>(config, request);
  try {
    scaling->shapes();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadInput) throw;
    out.notes.push_back("shorter inputs and smaller models are not forecast: the shapes of this model on these data are not known");
    return out;
  }
  out.variants.push_back(scaling->is_text() ? shorter_context(scaling) : smaller_pictures(scaling));
  for (FallbackVariants& kind : smaller_models(scaling)) out.variants.push_back(std::move(kind));
  std::erase_if(out.variants, [](const FallbackVariants& kind) { return kind.variants.empty(); });
  if (scaling->is_text() && is_given(config, *find_setting("context"))) out.longer = concat("--context ", config.context);
  if (scaling->is_measured() && !out.variants.empty())
    out.notes.push_back("other inputs and other models are scaled from what was measured, by what their shapes say");
  return out;
}

}  // namespace cohort
