#include "cohort/plan/profile/profile.h"

#include <limits>

#include "cohort/plan/profile/file_fields.h"

namespace cohort {
namespace {

// Sums over all layers and micro-batches stay far from overflow.
constexpr int64_t kMostBytes = INT64_C(1) << 44, kMostMicroBatch = INT64_C(1) << 30;
constexpr size_t kMostLayers = size_t{1} << 16;
constexpr double kMostSeconds = 1e9;

const std::vector<std::string> kOutputKept = {"no", "itself", "readers"};  // In the order of OutputKept.
const std::vector<std::string> kProfileKeys = {
    "model", "micro_batch", "layers", "edges", "tied", "link_latency_seconds", "link_bytes_per_second"};
const std::vector<std::string> kLayerKeys = {
    "name",        "kind",         "forward_seconds", "backward_input_seconds", "backward_weight_seconds", "weight_bytes",
    "stash_bytes", "output_bytes", "output_kept"};

}  // namespace

OutputKept read_output_kept(const FileFields& fields) {
  if (!fields.has("output_kept")) return OutputKept::kNo;
  const std::string kept = fields.choice("output_kept", kOutputKept);
  return static_cast<OutputKept>(std::find(kOutputKept.begin(), kOutputKept.end(), kept) - kOutputKept.begin());
}

const std::string& output_kept_name(OutputKept kept) { return kOutputKept.at(static_cast<size_t>(kept)); }

std::vector<int> last_readers(const std::vector<std::pair<int, int>>& edges, size_t num_layers) {
  std::vector<int> last(num_layers, -1);
  for (const auto& [from, to] : edges)
    if (from >= 0) last[static_cast<size_t>(from)] = std::max(last[static_cast<size_t>(from)], to);
  return last;
}

void check_profile(const Profile& profile) {
  const auto check = [](double value, const std::string& where, const char* what) {
    if (!(value >= 0) || !std::isfinite(value)) fail(ErrorCode::kBadInput, "profile: ", where, ": ", what, " is ", value);
  };
  if (profile.layers.empty() || profile.layers.size() > kMostLayers)
    fail(ErrorCode::kBadInput, "profile: ", profile.layers.size(), " layers; expected 1 to ", kMostLayers);
  for (const LayerProfile& layer : profile.layers) {
    const std::string where = concat("layer '", layer.name, "'");
    check(layer.forward_seconds, where, "forward_seconds");
    check(layer.backward_input_seconds, where, "backward_input_seconds");
    check(layer.backward_weight_seconds, where, "backward_weight_seconds");
    for (const int64_t bytes : {layer.weight_bytes, layer.stash_bytes, layer.output_bytes})
      if (bytes < 0 || bytes > kMostBytes)
        fail(ErrorCode::kBadInput, "profile: ", where, ": ", bytes, " bytes; expected 0 to ", kMostBytes);
  }
  for (const auto& [from, to] : profile.edges)
    if (from < -1 || from >= to || to >= static_cast<int>(profile.layers.size()))
      fail(ErrorCode::kBadInput, "profile: edge ", from, " to ", to, " of ", profile.layers.size(),
           " layers does not lead from an earlier to a later one");
  for (const auto& [owner, user] : profile.tied)
    if (owner < 0 || owner >= user || user >= static_cast<int>(profile.layers.size()))
      fail(ErrorCode::kBadInput, "profile: tied ", owner, " and ", user, " of ", profile.layers.size(),
           " layers are not an earlier and a later one");
  check(profile.link_latency_seconds, "link", "latency");
  check(profile.link_bytes_per_second, "link", "rate");
}

Json to_json(const Profile& profile) {
  Json layers = Json::array();
  for (const LayerProfile& layer : profile.layers) {
    layers.push_back({{"name", layer.name},
                      {"kind", layer.kind},
                      {"forward_seconds", layer.forward_seconds},
                      {"backward_input_seconds", layer.backward_input_seconds},
                      {"backward_weight_seconds", layer.backward_weight_seconds},
                      {"weight_bytes", layer.weight_bytes},
                      {"stash_bytes", layer.stash_bytes},
                      {"output_bytes", layer.output_bytes},
                      {"output_kept", output_kept_name(layer.output_kept)}});
  }
  Json edges = Json::array(), tied = Json::array();
  for (const auto& [from, to] : profile.edges) edges.push_back(Json::array({from, to}));
  for (const auto& [owner, user] : profile.tied) tied.push_back(Json::array({owner, user}));
  return {{"model", profile.model},
          {"micro_batch", profile.micro_batch},
          {"layers", std::move(layers)},
          {"edges", std::move(edges)},
          {"tied", std::move(tied)},
          {"link_latency_seconds", profile.link_latency_seconds},
          {"link_bytes_per_second", profile.link_bytes_per_second}};
}

Profile profile_from_json(const Json& json, const std::string& where) {
  const FileFields fields(json, where, kProfileKeys);
  Profile profile;
  profile.model = fields.text("model");
  profile.micro_batch = fields.integer("micro_batch", 1, kMostMicroBatch);
  for (const Json& layer : fields.list("layers", kMostLayers)) {
    const FileFields its(layer, concat(where, ": layers[", profile.layers.size(), "]"), kLayerKeys);
    profile.layers.push_back({.name = its.text("name"),
                              .kind = its.text("kind"),
                              .forward_seconds = its.number("forward_seconds", 0, kMostSeconds),
                              .backward_input_seconds = its.number("backward_input_seconds", 0, kMostSeconds),
                              .backward_weight_seconds = its.number("backward_weight_seconds", 0, kMostSeconds),
                              .weight_bytes = its.integer("weight_bytes", 0, kMostBytes),
                              .stash_bytes = its.integer("stash_bytes", 0, kMostBytes),
                              .output_bytes = its.integer("output_bytes", 0, kMostBytes),
                              .output_kept = read_output_kept(its)});
  }
  if (profile.layers.empty()) fields.refuse("layers", "'layers' is empty");
  profile.edges = fields.layer_pairs("edges", -1, profile.layers.size());
  if (fields.has("tied")) profile.tied = fields.layer_pairs("tied", 0, profile.layers.size());
  profile.link_latency_seconds = fields.number("link_latency_seconds", 0, std::numeric_limits<double>::max());
  profile.link_bytes_per_second = fields.number("link_bytes_per_second", 0, std::numeric_limits<double>::max());
  return profile;
}

}  // namespace cohort
