#include "cohort/plan/profile/profile.h"

#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

// Sums over all layers and micro-batches stay far from overflow.
constexpr int64_t kMostBytes = INT64_C(1) << 44;
constexpr size_t kMostLayers = size_t{1} << 16;

const std::vector<std::string> kOutputKept = {"no", "itself", "readers"};  // As OutputKept.
const std::vector<std::string> kProfileKeys = {
    "model", "micro_batch", "layers", "edges", "tied", "link_latency_seconds", "link_bytes_per_second"};
const std::vector<std::string> kLayerKeys = {
    "name",        "kind",         "forward_seconds", "backward_input_seconds", "backward_weight_seconds", "weight_bytes",
    "stash_bytes", "output_bytes", "output_kept"};

void check_object(const Json& json, const std::string& where, const std::vector<std::string>& keys) {
  if (!json.is_object()) fail(ErrorCode::kBadInput, where, ": expected an object");
  for (const auto& [key, value] : json.items())
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      fail(ErrorCode::kBadInput, where, ": unknown key '", key, "'", did_you_mean(key, keys), "; keys: ", join(keys, " "));
}

const Json& member(const Json& json, const std::string& where, const std::string& key) {
  const auto found = json.find(key);
  if (found == json.end()) fail(ErrorCode::kBadInput, where, ": '", key, "' is missing");
  return *found;
}

std::string text_of(const Json& json, const std::string& where, const std::string& key) {
  const Json& value = member(json, where, key);
  if (!value.is_string()) fail(ErrorCode::kBadInput, where, ": '", key, "' is no text");
  return value.get<std::string>();
}

double number_of(const Json& json, const std::string& where, const std::string& key) {
  const Json& value = member(json, where, key);
  if (!value.is_number()) fail(ErrorCode::kBadInput, where, ": '", key, "' is no number");
  return value.get<double>();
}

int64_t integer_of(const Json& value, const std::string& where, const std::string& what) {
  if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX))
    fail(ErrorCode::kBadInput, where, ": ", what, " is no whole number");
  return value.get<int64_t>();
}

LayerProfile layer_from_json(const Json& json, const std::string& where) {
  check_object(json, where, kLayerKeys);
  const auto bytes = [&](const std::string& key) { return integer_of(member(json, where, key), where, "'" + key + "'"); };
  LayerProfile layer;
  layer.name = text_of(json, where, "name");
  layer.kind = text_of(json, where, "kind");
  layer.forward_seconds = number_of(json, where, "forward_seconds");
  layer.backward_input_seconds = number_of(json, where, "backward_input_seconds");
  layer.backward_weight_seconds = number_of(json, where, "backward_weight_seconds");
  layer.weight_bytes = bytes("weight_bytes");
  layer.stash_bytes = bytes("stash_bytes");
  layer.output_bytes = bytes("output_bytes");
  if (json.contains("output_kept")) {
    const std::string kept = text_of(json, where, "output_kept");
    const auto found = std::find(kOutputKept.begin(), kOutputKept.end(), kept);
    if (found == kOutputKept.end())
      fail(ErrorCode::kBadInput, where, ": output_kept '", kept, "'", did_you_mean(kept, kOutputKept),
           " is none of: ", join(kOutputKept, " "));
    layer.output_kept = static_cast<OutputKept>(found - kOutputKept.begin());
  }
  return layer;
}

std::pair<int, int> edge_from_json(const Json& json, const std::string& where) {
  if (!json.is_array() || json.size() != 2) fail(ErrorCode::kBadInput, where, ": expected [from, to]");
  const int64_t from = integer_of(json[0], where, "from"), to = integer_of(json[1], where, "to");
  if (from < -1 || to < 0 || from > INT32_MAX || to > INT32_MAX)
    fail(ErrorCode::kBadInput, where, ": ", from, " to ", to, " are no layers");
  return {static_cast<int>(from), static_cast<int>(to)};
}

}  // namespace

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
                      {"output_kept", kOutputKept.at(static_cast<size_t>(layer.output_kept))}});
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

Profile profile_from_json(const Json& json) {
  check_object(json, "profile", kProfileKeys);
  Profile profile;
  profile.model = text_of(json, "profile", "model");
  profile.micro_batch = integer_of(member(json, "profile", "micro_batch"), "profile", "'micro_batch'");
  const Json &layers = member(json, "profile", "layers"), &edges = member(json, "profile", "edges");
  if (!layers.is_array()) fail(ErrorCode::kBadInput, "profile: 'layers' is no list");
  if (!edges.is_array()) fail(ErrorCode::kBadInput, "profile: 'edges' is no list");
  for (const Json& layer : layers) profile.layers.push_back(layer_from_json(layer, concat("profile: layer ", profile.layers.size())));
  for (const Json& edge : edges) profile.edges.push_back(edge_from_json(edge, concat("profile: edge ", profile.edges.size())));
  if (json.contains("tied")) {
    if (!json["tied"].is_array()) fail(ErrorCode::kBadInput, "profile: 'tied' is no list");
    for (const Json& pair : json["tied"]) profile.tied.push_back(edge_from_json(pair, concat("profile: tied ", profile.tied.size())));
  }
  profile.link_latency_seconds = number_of(json, "profile", "link_latency_seconds");
  profile.link_bytes_per_second = number_of(json, "profile", "link_bytes_per_second");
  check_profile(profile);
  return profile;
}

}  // namespace cohort
