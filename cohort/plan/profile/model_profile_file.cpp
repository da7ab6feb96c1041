// A Profile and a ModelProfile as JSON: docs/formats/profile.md. Costs of a ModelProfile stand in lists, not in an object a layer and
// point: a fifth of the bytes.
//
// Large files are refused early: by their bytes, then by a count of their objects, lists and values in one pass over the text, which bounds
// the JSON tree.
#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <unordered_set>

#include "cohort/base/files/file.h"
#include "cohort/job/specs/small_specs.h"
#include "cohort/plan/profile/file_fields.h"
#include "cohort/plan/profile/model_profile.h"

namespace cohort {
namespace {

constexpr size_t kMostFileBytes = size_t{1} << 27;
constexpr size_t kMostLayers = size_t{1} << 16, kMostPoints = size_t{1} << 12;
constexpr size_t kCostsEach = 8, kMostCosts = size_t{1} << 24;  // Per layer and point: three times, two interval ends, three sizes.
constexpr size_t kMostClusters = 64, kClusterValues = 128;      // Per measured machine.
constexpr int64_t kMostBytes = INT64_C(1) << 44;                // Sums over all layers and micro-batches stay far from overflow.
constexpr int64_t kMostElements = kMostBytes / 4, kMostMicroBatch = INT64_C(1) << 30, kMostDegree = 1 << 20;
constexpr double kMostSeconds = 1e9, kMostShare = 1e6;

const std::vector<std::string> kOutputKept = {"no", "itself", "readers"};  // In the order of OutputKept.
const std::vector<std::string> kOneSizeKeys = {
    "model", "micro_batch", "layers", "edges", "tied", "link_latency_seconds", "link_bytes_per_second"};
const std::vector<std::string> kOneSizeLayerKeys = {
    "name",        "kind",         "forward_seconds", "backward_input_seconds", "backward_weight_seconds", "weight_bytes",
    "stash_bytes", "output_bytes", "output_kept"};

OutputKept read_output_kept(const FileFields& fields) {
  if (!fields.has("output_kept")) return OutputKept::kNo;
  const std::string kept = fields.choice("output_kept", kOutputKept);
  return static_cast<OutputKept>(std::find(kOutputKept.begin(), kOutputKept.end(), kept) - kOutputKept.begin());
}

const std::string& output_kept_name(OutputKept kept) { return kOutputKept.at(static_cast<size_t>(kept)); }

}  // namespace

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
  const FileFields fields(json, where, kOneSizeKeys);
  Profile profile;
  profile.model = fields.text("model");
  profile.micro_batch = fields.integer("micro_batch", 1, kMostMicroBatch);
  for (const Json& layer : fields.list("layers", kMostLayers)) {
    const FileFields its(layer, concat(where, ": layers[", profile.layers.size(), "]"), kOneSizeLayerKeys);
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

namespace {

const std::vector<std::string> kPrecisions = {"fp32", "bf16", "fp16"};
const std::vector<std::string> kProfileKeys = {"model",   "source",     "layers", "edges", "tied", "points", "sample_granularity",
                                               "codings", "measured_on"};
const std::vector<std::string> kCodingKeys = {"device", "compress", "seconds", "sent_share", "num_exchanges"};
const std::vector<std::string> kLayerKeys = {"name",         "kind",        "num_trained",  "num_frozen",
                                             "buffer_bytes", "output_kept", "tensor_parts", "num_tensor_exchanges"};
const std::vector<std::string> kPointKeys = {
    "device", "precision", "tp",          "micro_batch",  "forward_seconds", "backward_input_seconds", "backward_weight_seconds",
    "low",    "high",      "stash_bytes", "output_bytes", "working_bytes"};

const Json& list_per_layer(const FileFields& fields, const char* key, size_t num_layers) {
  const Json& values = fields.list(key, kMostLayers);
  if (values.size() != num_layers) fields.refuse(key, "'", key, "' has ", values.size(), " numbers for ", num_layers, " layers");
  return values;
}

/// Reads one number for each layer into `member` of its cost.
void read_seconds(const FileFields& fields, const char* key, double LayerCost::* member, double least, double most,
                  std::vector<LayerCost>& layers) {
  const Json& values = list_per_layer(fields, key, layers.size());
  for (size_t i = 0; i < layers.size(); ++i) layers[i].*member = fields.number_value(values[i], key, i, least, most);
}

void read_bytes(const FileFields& fields, const char* key, int64_t LayerCost::* member, std::vector<LayerCost>& layers) {
  const Json& values = list_per_layer(fields, key, layers.size());
  for (size_t i = 0; i < layers.size(); ++i) layers[i].*member = fields.integer_value(values[i], key, i, 0, kMostBytes);
}

/// Reads an end of the interval: one number for all layers, or a list; 1 where it is missing.
void read_interval_end(const FileFields& fields, const char* key, double LayerCost::* member, double least, double most,
                       std::vector<LayerCost>& layers) {
  if (!fields.has(key)) return;
  if (fields.member(key).is_array()) return read_seconds(fields, key, member, least, most, layers);
  const double value = fields.number(key, least, most);
  for (LayerCost& layer : layers) layer.*member = value;
}

ProfiledLayer layer_from_json(const Json& json, const std::string& where) {
  const FileFields fields(json, where, kLayerKeys);
  ProfiledLayer layer;
  layer.name = fields.text("name");
  layer.kind = fields.text("kind");
  layer.num_trained = fields.integer("num_trained", 0, kMostElements);
  if (fields.has("num_frozen")) layer.num_frozen = fields.integer("num_frozen", 0, kMostElements - layer.num_trained);
  if (fields.has("buffer_bytes")) layer.buffer_bytes = fields.integer("buffer_bytes", 0, kMostBytes);
  layer.output_kept = read_output_kept(fields);
  if (fields.has("tensor_parts")) layer.tensor_parts = static_cast<int>(fields.integer("tensor_parts", 1, kMostDegree));
  if (fields.has("num_tensor_exchanges"))
    layer.num_tensor_exchanges = static_cast<int>(fields.integer("num_tensor_exchanges", 0, kMostDegree));
  return layer;
}

ProfilePoint point_from_json(const Json& json, const std::string& where, size_t num_layers) {
  const FileFields fields(json, where, kPointKeys);
  ProfilePoint point;
  if (fields.has("device")) point.device = fields.text("device");
  if (fields.has("precision")) point.precision = fields.choice("precision", kPrecisions);
  if (fields.has("tp")) point.tp = static_cast<int>(fields.integer("tp", 1, kMostDegree));
  point.micro_batch = fields.integer("micro_batch", 1, kMostMicroBatch);
  point.layers.resize(num_layers);
  read_seconds(fields, "forward_seconds", &LayerCost::forward_seconds, 0, kMostSeconds, point.layers);
  read_seconds(fields, "backward_input_seconds", &LayerCost::backward_input_seconds, 0, kMostSeconds, point.layers);
  read_seconds(fields, "backward_weight_seconds", &LayerCost::backward_weight_seconds, 0, kMostSeconds, point.layers);
  read_interval_end(fields, "low", &LayerCost::low, 0, 1, point.layers);
  read_interval_end(fields, "high", &LayerCost::high, 1, kMostShare, point.layers);
  read_bytes(fields, "stash_bytes", &LayerCost::stash_bytes, point.layers);
  read_bytes(fields, "output_bytes", &LayerCost::output_bytes, point.layers);
  if (fields.has("working_bytes")) read_bytes(fields, "working_bytes", &LayerCost::working_bytes, point.layers);
  return point;
}

/// Layer names must be present and unique, because layouts use them.
void check_names(const std::vector<ProfiledLayer>& layers, const std::string& where) {
  std::unordered_set<std::string> names;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].name.empty()) fail(ErrorCode::kBadInput, where, ": layers[", i, "]: 'name' is empty");
    if (!names.insert(layers[i].name).second)
      fail(ErrorCode::kBadInput, where, ": layers[", i, "]: another layer is named ", quote_text(layers[i].name), ", too");
  }
}

std::string text_of(const ProfilePoint& point) {
  return concat(point.device.empty() ? "any device" : "device " + quote_text(point.device), ", ", point.precision, ", tp ", point.tp,
                ", micro-batch ", point.micro_batch);
}

void sort_points(std::vector<ProfilePoint>& points, const std::string& where) {
  const auto key = [](const ProfilePoint& point) { return std::tie(point.device, point.precision, point.tp, point.micro_batch); };
  std::sort(points.begin(), points.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  const auto alike = std::adjacent_find(points.begin(), points.end(), [&](const auto& a, const auto& b) { return key(a) == key(b); });
  if (alike != points.end()) fail(ErrorCode::kBadInput, where, ": two points for ", text_of(*alike));
}

CodingCost coding_from_json(const Json& json, const std::string& where) {
  const FileFields its(json, where, kCodingKeys);
  return {its.text("device"), its.text("compress"), its.number("seconds", 0, kMostSeconds), its.number("sent_share", 0, 1e6),
          static_cast<int>(its.integer("num_exchanges", 1, 1 << 20))};
}

/// The older form, of one size (to_json(Profile)). Its link is checked and dropped: a cluster says that now.
ModelProfile from_one_size(const Json& json, const std::string& where) {
  const Profile from = profile_from_json(json, where);
  ModelProfile profile{.model = from.model, .edges = from.edges, .tied = from.tied};
  ProfilePoint& point = profile.points.emplace_back();
  point.micro_batch = from.micro_batch;
  for (const LayerProfile& layer : from.layers) {
    profile.layers.push_back(
        {.name = layer.name, .kind = layer.kind, .num_trained = (layer.weight_bytes + 3) / 4, .output_kept = layer.output_kept});
    point.layers.push_back({.forward_seconds = layer.forward_seconds,
                            .backward_input_seconds = layer.backward_input_seconds,
                            .backward_weight_seconds = layer.backward_weight_seconds,
                            .stash_bytes = layer.stash_bytes,
                            .output_bytes = layer.output_bytes});
  }
  check_names(profile.layers, where);
  return profile;
}

/// Refuses a text from which a larger tree would be built than any profile needs.
void check_counts(const std::string& text, const std::string& where) {
  constexpr size_t kMostObjects = 1 + kMostLayers + kMostPoints + kMostClusters * kClusterValues;
  constexpr size_t kMostLists = 4 + kMostClusters * kClusterValues + 2 * FileFields::kMostPairs + kCostsEach * kMostPoints;
  constexpr size_t kMostValues =
      kMostClusters * kClusterValues + kMostCosts + 2 * 2 * FileFields::kMostPairs + 16 * (kMostLayers + kMostPoints);
  size_t num_objects = 0, num_lists = 0, num_values = 1;
  bool is_inside = false;  // Inside a string.
  for (size_t i = 0; i < text.size(); ++i) {
    const char at = text[i];
    if (at == '"') is_inside = !is_inside;
    else if (is_inside) i += at == '\\' ? 1 : 0;
    else if (at == '{') ++num_objects;
    else if (at == '[') ++num_lists;
    else if (at == ',') ++num_values;
  }
  if (num_objects > kMostObjects)
    fail(ErrorCode::kBadInput, where, ": ", num_objects, " JSON objects; a profile has one for each of at most ", kMostLayers,
         " layers and ", kMostPoints, " points");
  if (num_lists > kMostLists) fail(ErrorCode::kBadInput, where, ": ", num_lists, " lists; a profile has at most ", kMostLists);
  if (num_values > kMostValues)
    fail(ErrorCode::kBadInput, where, ": ", num_values, " values; a profile has at most ", kMostValues,
         ", most of them costs: leave out points");
}

Json pairs_json(const std::vector<std::pair<int, int>>& pairs) {
  Json out = Json::array();
  for (const auto& [first, second] : pairs) out.push_back(Json::array({first, second}));
  return out;
}

/// Keys with default values are left out.
Json layer_json(const ProfiledLayer& layer) {
  Json out{{"name", layer.name}, {"kind", layer.kind}, {"num_trained", layer.num_trained}};
  if (layer.num_frozen != 0) out["num_frozen"] = layer.num_frozen;
  if (layer.buffer_bytes != 0) out["buffer_bytes"] = layer.buffer_bytes;
  if (layer.output_kept != OutputKept::kNo) out["output_kept"] = output_kept_name(layer.output_kept);
  if (layer.tensor_parts != 1) out["tensor_parts"] = layer.tensor_parts;
  if (layer.num_tensor_exchanges != 0) out["num_tensor_exchanges"] = layer.num_tensor_exchanges;
  return out;
}

Json point_json(const ProfilePoint& point) {
  Json out{{"device", point.device}, {"precision", point.precision}, {"tp", point.tp}, {"micro_batch", point.micro_batch}};
  const auto put = [&](const char* key, auto member) {
    Json& values = out[key] = Json::array();
    for (const LayerCost& layer : point.layers) values.push_back(layer.*member);
  };
  const auto put_share = [&](const char* key, double LayerCost::* member) {
    if (std::any_of(point.layers.begin(), point.layers.end(), [&](const LayerCost& layer) { return layer.*member != 1; })) put(key, member);
  };
  put("forward_seconds", &LayerCost::forward_seconds);
  put("backward_input_seconds", &LayerCost::backward_input_seconds);
  put("backward_weight_seconds", &LayerCost::backward_weight_seconds);
  put_share("low", &LayerCost::low);
  put_share("high", &LayerCost::high);
  put("stash_bytes", &LayerCost::stash_bytes);
  put("output_bytes", &LayerCost::output_bytes);
  if (std::any_of(point.layers.begin(), point.layers.end(), [](const LayerCost& layer) { return layer.working_bytes != 0; }))
    put("working_bytes", &LayerCost::working_bytes);
  return out;
}

/// Error(kBadInput) for a compression that there is not, "none", one that comes twice for a device, and a device that no point speaks of.
/// `where` names the file.
void check_codings(const ModelProfile& profile, const std::string& where) {
  std::set<std::string> devices;
  for (const ProfilePoint& point : profile.points) devices.insert(point.device);
  std::set<std::pair<std::string, std::string>> seen;
  for (size_t i = 0; i < profile.codings.size(); ++i) {
    const CodingCost& its = profile.codings[i];
    const std::string place = concat(where, ": codings[", i, "]: ");
    try {
      parse_compression(its.compress);
    } catch (const Error& error) {
      fail(ErrorCode::kBadInput, place, error.what());
    }
    if (its.compress == "none") fail(ErrorCode::kBadInput, place, "'compress' is none, which costs nothing; leave the entry out");
    // A point of any device does for all; so does a coding.
    if (!its.device.empty() && !devices.contains("") && !devices.contains(its.device))
      fail(ErrorCode::kBadInput, place, "'device' is ", quote_text(its.device), ", which no point has; give the name that the points have");
    if (!seen.emplace(its.device, its.compress).second)
      fail(ErrorCode::kBadInput, place, "another entry is for device ", quote_text(its.device), " and ", its.compress, ", too");
  }
}

}  // namespace

ModelProfile model_profile_from_json(const Json& json, const std::string& where) {
  if (json.is_object() && json.contains("micro_batch") && !json.contains("points")) return from_one_size(json, where);
  const FileFields fields(json, where, kProfileKeys);
  const Json &layers = fields.list("layers", kMostLayers), &points = fields.list("points", kMostPoints);
  if (layers.empty()) fields.refuse("layers", "'layers' is empty");
  if (points.empty()) fields.refuse("points", "'points' is empty");
  if (layers.size() * points.size() > kMostCosts / kCostsEach)
    fields.refuse("", layers.size(), " layers at ", points.size(), " points; at most ", kMostCosts / kCostsEach,
                  " (layers x points) are accepted");
  ModelProfile profile;
  if (fields.has("source")) profile.source = fields.text("source");
  profile.layers.reserve(layers.size());
  for (const Json& layer : layers) profile.layers.push_back(layer_from_json(layer, concat(where, ": layers[", profile.layers.size(), "]")));
  profile.points.reserve(points.size());
  for (const Json& point : points)
    profile.points.push_back(point_from_json(point, concat(where, ": points[", profile.points.size(), "]"), layers.size()));
  if (fields.has("sample_granularity")) profile.sample_granularity = fields.integer("sample_granularity", 1, INT64_C(1) << 40);
  if (fields.has("codings"))
    for (const Json& coding : fields.list("codings", kMostPoints))
      profile.codings.push_back(coding_from_json(coding, concat(where, ": codings[", profile.codings.size(), "]")));
  if (fields.has("measured_on"))
    for (const Json& cluster : fields.list("measured_on", kMostClusters))
      profile.measured_on.push_back(cluster_from_json(cluster, concat(where, ": measured_on[", profile.measured_on.size(), "]")));
  check_codings(profile, where);
  profile.model = fields.text("model");
  profile.edges = fields.layer_pairs("edges", -1, profile.layers.size());
  if (fields.has("tied")) profile.tied = fields.layer_pairs("tied", 0, profile.layers.size());
  check_names(profile.layers, where);
  sort_points(profile.points, where);
  return profile;
}

Json to_json(const ModelProfile& profile) {
  Json layers = Json::array(), points = Json::array();
  for (const ProfiledLayer& layer : profile.layers) layers.push_back(layer_json(layer));
  for (const ProfilePoint& point : profile.points) points.push_back(point_json(point));
  Json out{{"model", profile.model},           {"source", profile.source},
           {"layers", std::move(layers)},      {"edges", pairs_json(profile.edges)},
           {"tied", pairs_json(profile.tied)}, {"points", std::move(points)}};
  if (profile.sample_granularity > 1) out["sample_granularity"] = profile.sample_granularity;
  for (const CodingCost& one : profile.codings)
    out["codings"].push_back({{kCodingKeys[0], one.device},
                              {kCodingKeys[1], one.compress},
                              {kCodingKeys[2], one.seconds},
                              {kCodingKeys[3], one.sent_share},
                              {kCodingKeys[4], one.num_exchanges}});
  for (const Cluster& cluster : profile.measured_on) out["measured_on"].push_back(to_json(cluster));
  return out;
}

ModelProfile read_model_profile(const std::string& path) {
  std::string text = read_small_file(path, kMostFileBytes);
  check_counts(text, path);
  const Json json = parse_strict_ordered_json(std::exchange(text, {}), {.path = path});  // The text goes before the profile is made.
  return model_profile_from_json(json, path);
}

}  // namespace cohort
