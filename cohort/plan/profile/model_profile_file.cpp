// A ModelProfile as JSON: docs/formats/profile.md. Costs stand in lists, not in an object a layer and point: a fifth of the bytes.
//
// A file that is too large is refused before anything is built from it: by its bytes, then by a count of its objects, lists and values in
// one pass over the text, which bounds the JSON tree whatever the file holds. Source: ours.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/job/specs/small_specs.h"
#include "cohort/plan/profile/model_profile.h"

namespace cohort {
namespace {

constexpr size_t kMostFileBytes = size_t{1} << 27;
constexpr size_t kMostLayers = size_t{1} << 16, kMostPoints = size_t{1} << 12, kMostPairs = size_t{1} << 20;
constexpr size_t kCostsEach = 8, kMostCosts = size_t{1} << 24;  // Of a layer at a point: three times, two ends, three counts of bytes.
constexpr size_t kMostClusters = 64, kClusterValues = 128;      // Of a machine that was measured.
constexpr size_t kMostTextBytes = 4096;
constexpr int64_t kMostBytes = INT64_C(1) << 44;  // Sums over all layers and micro-batches stay far from overflow.
constexpr int64_t kMostElements = kMostBytes / 4, kMostMicroBatch = INT64_C(1) << 30, kMostDegree = 1 << 20;
constexpr double kMostSeconds = 1e9, kMostShare = 1e6;

const std::vector<std::string> kOutputKept = {"no", "itself", "readers"};  // As OutputKept.
const std::vector<std::string> kPrecisions = {"fp32", "bf16", "fp16"};
const std::vector<std::string> kProfileKeys = {"model",   "source",     "layers", "edges", "tied", "points", "sample_granularity",
                                               "codings", "measured_on"};
const std::vector<std::string> kCodingKeys = {"device", "compress", "seconds", "sent_share", "num_exchanges"};
const std::vector<std::string> kLayerKeys = {"name",         "kind",        "num_trained",  "num_frozen",
                                             "buffer_bytes", "output_kept", "tensor_parts", "num_tensor_exchanges"};
const std::vector<std::string> kOneSizeKeys = {
    "model", "micro_batch", "layers", "edges", "tied", "link_latency_seconds", "link_bytes_per_second"};
const std::vector<std::string> kOneSizeLayerKeys = {
    "name",        "kind",         "forward_seconds", "backward_input_seconds", "backward_weight_seconds", "weight_bytes",
    "stash_bytes", "output_bytes", "output_kept"};
const std::vector<std::string> kPointKeys = {
    "device", "precision", "tp",          "micro_batch",  "forward_seconds", "backward_input_seconds", "backward_weight_seconds",
    "low",    "high",      "stash_bytes", "output_bytes", "working_bytes"};

/// One object of the file. Names of keys are the source's; what the file says is quoted, so that a refusal stays one line.
class Fields {
 public:
  Fields(const Json& object, std::string where, const std::vector<std::string>& keys) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) refuse("expected an object, found ", object.type_name());
    for (const auto& [key, value] : object.items())
      if (std::find(keys.begin(), keys.end(), key) == keys.end())
        refuse("unknown key ", quote_text(key), suggestion(key, keys), "; keys: ", join(keys, " "));
  }

  template <typename... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail(ErrorCode::kBadInput, where_, ": ", parts...);
  }

  bool has(const char* key) const { return object_.contains(key); }

  const Json& member(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) refuse("'", key, "' is missing");
    return *found;
  }

  /// One line of text.
  std::string text(const char* key) const {
    const Json& value = member(key);
    if (!value.is_string()) refuse("'", key, "' is ", value.type_name(), "; expected text");
    const auto& text = value.get_ref<const std::string&>();
    if (text.size() > kMostTextBytes) refuse("'", key, "' has ", text.size(), " bytes; at most ", kMostTextBytes, " are accepted");
    if (text.find_first_of("\n\t") != std::string::npos || printable(text) != text)
      refuse("'", key, "' is ", quote_text(text), ": control characters are not accepted");
    return text;
  }

  std::string choice(const char* key, const std::vector<std::string>& allowed) const {
    const std::string value = text(key);
    if (std::find(allowed.begin(), allowed.end(), value) == allowed.end())
      refuse("'", key, "' is ", quote_text(value), suggestion(value, allowed), "; expected one of: ", join(allowed, " "));
    return value;
  }

  int64_t integer(const char* key, int64_t least, int64_t most) const { return integer_value(member(key), key, {}, least, most); }

  double number(const char* key, double least, double most) const { return number_value(member(key), key, {}, least, most); }

  const Json& list(const char* key, size_t most) const {
    const Json& value = member(key);
    if (!value.is_array()) refuse("'", key, "' is ", value.type_name(), "; expected a list");
    if (value.size() > most) refuse("'", key, "' has ", value.size(), " entries; at most ", most, " are accepted");
    return value;
  }

  /// A list of pairs [least or more, a later layer].
  std::vector<std::pair<int, int>> pairs(const char* key, int64_t least, size_t num_layers) const {
    std::vector<std::pair<int, int>> out;
    const Json& values = list(key, kMostPairs);
    out.reserve(values.size());
    for (const Json& pair : values) {
      const size_t index = out.size();
      if (!pair.is_array() || pair.size() != 2) refuse("'", key, "'", place(index), ": expected a pair of layer indices");
      const auto most = static_cast<int64_t>(num_layers) - 1;
      const int64_t first = integer_value(pair[0], key, index, least, most), second = integer_value(pair[1], key, index, 0, most);
      if (first >= second)
        refuse("'", key, "'", place(index), " is [", first, ", ", second, "], which does not lead from an earlier to a later layer");
      out.emplace_back(static_cast<int>(first), static_cast<int>(second));
    }
    return out;
  }

  /// One number for each layer into `member` of its cost.
  void seconds(const char* key, double LayerCost::* member, double least, double most, std::vector<LayerCost>& layers) const {
    const Json& values = per_layer(key, layers.size());
    for (size_t i = 0; i < layers.size(); ++i) layers[i].*member = number_value(values[i], key, i, least, most);
  }

  void bytes(const char* key, int64_t LayerCost::* member, std::vector<LayerCost>& layers) const {
    const Json& values = per_layer(key, layers.size());
    for (size_t i = 0; i < layers.size(); ++i) layers[i].*member = integer_value(values[i], key, i, 0, kMostBytes);
  }

  /// An end of the interval: one number for all layers, or a list; 1 where it is left out.
  void share(const char* key, double LayerCost::* member, double least, double most, std::vector<LayerCost>& layers) const {
    if (!has(key)) return;
    if (object_.find(key)->is_array()) return seconds(key, member, least, most, layers);
    const double value = number(key, least, most);
    for (LayerCost& layer : layers) layer.*member = value;
  }

 private:
  /// A name of `names`; long texts are no slips of the finger, and an edit distance to them would take long.
  static std::string suggestion(const std::string& text, const std::vector<std::string>& names) {
    return text.size() > 64 ? "" : did_you_mean(text, names);
  }

  static std::string place(std::optional<size_t> index) { return index ? concat("[", *index, "]") : ""; }

  static bool is_integer(const Json& value) {
    return value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
  }

  int64_t integer_value(const Json& value, const char* key, std::optional<size_t> index, int64_t least, int64_t most) const {
    if (!is_integer(value) || value.get<int64_t>() < least || value.get<int64_t>() > most)
      refuse("'", key, "'", place(index), " is ", shown(value), "; expected a whole number from ", least, " to ", most);
    return value.get<int64_t>();
  }

  double number_value(const Json& value, const char* key, std::optional<size_t> index, double least, double most) const {
    const double number = value.is_number() ? value.get<double>() : NAN;
    if (!(number >= least && number <= most))
      refuse("'", key, "'", place(index), " is ", shown(value), "; expected a number from ", least, " to ", most);
    return number;
  }

  const Json& per_layer(const char* key, size_t num_layers) const {
    const Json& values = list(key, kMostLayers);
    if (values.size() != num_layers) refuse("'", key, "' has ", values.size(), " numbers for ", num_layers, " layers");
    return values;
  }

  static std::string shown(const Json& value) { return value.is_number() ? value.dump() : value.type_name(); }

  const Json& object_;
  std::string where_;
};

OutputKept output_kept(const Fields& fields) {
  if (!fields.has("output_kept")) return OutputKept::kNo;
  const std::string kept = fields.choice("output_kept", kOutputKept);
  return static_cast<OutputKept>(std::find(kOutputKept.begin(), kOutputKept.end(), kept) - kOutputKept.begin());
}

ProfiledLayer layer_from_json(const Json& json, const std::string& where) {
  const Fields fields(json, where, kLayerKeys);
  ProfiledLayer layer;
  layer.name = fields.text("name");
  layer.kind = fields.text("kind");
  layer.num_trained = fields.integer("num_trained", 0, kMostElements);
  if (fields.has("num_frozen")) layer.num_frozen = fields.integer("num_frozen", 0, kMostElements - layer.num_trained);
  if (fields.has("buffer_bytes")) layer.buffer_bytes = fields.integer("buffer_bytes", 0, kMostBytes);
  layer.output_kept = output_kept(fields);
  if (fields.has("tensor_parts")) layer.tensor_parts = static_cast<int>(fields.integer("tensor_parts", 1, kMostDegree));
  if (fields.has("num_tensor_exchanges"))
    layer.num_tensor_exchanges = static_cast<int>(fields.integer("num_tensor_exchanges", 0, kMostDegree));
  return layer;
}

ProfilePoint point_from_json(const Json& json, const std::string& where, size_t num_layers) {
  const Fields fields(json, where, kPointKeys);
  ProfilePoint point;
  if (fields.has("device")) point.device = fields.text("device");
  if (fields.has("precision")) point.precision = fields.choice("precision", kPrecisions);
  if (fields.has("tp")) point.tp = static_cast<int>(fields.integer("tp", 1, kMostDegree));
  point.micro_batch = fields.integer("micro_batch", 1, kMostMicroBatch);
  point.layers.resize(num_layers);
  fields.seconds("forward_seconds", &LayerCost::forward_seconds, 0, kMostSeconds, point.layers);
  fields.seconds("backward_input_seconds", &LayerCost::backward_input_seconds, 0, kMostSeconds, point.layers);
  fields.seconds("backward_weight_seconds", &LayerCost::backward_weight_seconds, 0, kMostSeconds, point.layers);
  fields.share("low", &LayerCost::low, 0, 1, point.layers);
  fields.share("high", &LayerCost::high, 1, kMostShare, point.layers);
  fields.bytes("stash_bytes", &LayerCost::stash_bytes, point.layers);
  fields.bytes("output_bytes", &LayerCost::output_bytes, point.layers);
  if (fields.has("working_bytes")) fields.bytes("working_bytes", &LayerCost::working_bytes, point.layers);
  return point;
}

/// What a layout names must be there, and once.
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
  const Fields its(json, where, kCodingKeys);
  return {its.text("device"), its.text("compress"), its.number("seconds", 0, kMostSeconds), its.number("sent_share", 0, 1e6),
          static_cast<int>(its.integer("num_exchanges", 1, 1 << 20))};
}

/// What both forms have.
ModelProfile finished(ModelProfile profile, const Fields& fields, const std::string& where) {
  profile.model = fields.text("model");
  profile.edges = fields.pairs("edges", -1, profile.layers.size());
  if (fields.has("tied")) profile.tied = fields.pairs("tied", 0, profile.layers.size());
  check_names(profile.layers, where);
  sort_points(profile.points, where);
  return profile;
}

const Json& layers_of(const Fields& fields) {
  const Json& layers = fields.list("layers", kMostLayers);
  if (layers.empty()) fields.refuse("'layers' is empty");
  return layers;
}

/// The older form, of one size (to_json(Profile)): costs stand in the layers. Its link is checked and left: a cluster says that now.
ModelProfile from_one_size(const Json& json, const std::string& where) {
  const Fields fields(json, where, kOneSizeKeys);
  ModelProfile profile;
  ProfilePoint point;
  point.micro_batch = fields.integer("micro_batch", 1, kMostMicroBatch);
  for (const char* key : {"link_latency_seconds", "link_bytes_per_second"}) fields.number(key, 0, std::numeric_limits<double>::max());
  for (const Json& layer : layers_of(fields)) {
    const Fields its(layer, concat(where, ": layers[", profile.layers.size(), "]"), kOneSizeLayerKeys);
    LayerCost cost;
    cost.forward_seconds = its.number("forward_seconds", 0, kMostSeconds);
    cost.backward_input_seconds = its.number("backward_input_seconds", 0, kMostSeconds);
    cost.backward_weight_seconds = its.number("backward_weight_seconds", 0, kMostSeconds);
    cost.stash_bytes = its.integer("stash_bytes", 0, kMostBytes);
    cost.output_bytes = its.integer("output_bytes", 0, kMostBytes);
    point.layers.push_back(cost);
    ProfiledLayer& out = profile.layers.emplace_back();
    out.name = its.text("name");
    out.kind = its.text("kind");
    out.num_trained = (its.integer("weight_bytes", 0, kMostBytes) + 3) / 4;
    out.output_kept = output_kept(its);
  }
  profile.points.push_back(std::move(point));
  return finished(std::move(profile), fields, where);
}

/// Refuses a text from which a larger tree would be built than any profile needs.
void check_counts(const std::string& text, const std::string& where) {
  constexpr size_t kMostObjects = 1 + kMostLayers + kMostPoints + kMostClusters * kClusterValues;
  constexpr size_t kMostLists = 4 + kMostClusters * kClusterValues + 2 * kMostPairs + kCostsEach * kMostPoints;
  constexpr size_t kMostValues = kMostClusters * kClusterValues + kMostCosts + 2 * 2 * kMostPairs + 16 * (kMostLayers + kMostPoints);
  size_t num_objects = 0, num_lists = 0, num_values = 1;
  bool is_inside = false;  // Of a string.
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

/// What is as it is where a key is left out, is left out.
Json layer_json(const ProfiledLayer& layer) {
  Json out{{"name", layer.name}, {"kind", layer.kind}, {"num_trained", layer.num_trained}};
  if (layer.num_frozen != 0) out["num_frozen"] = layer.num_frozen;
  if (layer.buffer_bytes != 0) out["buffer_bytes"] = layer.buffer_bytes;
  if (layer.output_kept != OutputKept::kNo) out["output_kept"] = kOutputKept.at(static_cast<size_t>(layer.output_kept));
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
  const Fields fields(json, where, kProfileKeys);
  const Json &layers = layers_of(fields), &points = fields.list("points", kMostPoints);
  if (points.empty()) fields.refuse("'points' is empty");
  if (layers.size() * points.size() > kMostCosts / kCostsEach)
    fields.refuse(layers.size(), " layers at ", points.size(), " points; at most ", kMostCosts / kCostsEach,
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
  return finished(std::move(profile), fields, where);
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
