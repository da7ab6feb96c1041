// Reads an instance of Piper.
//
// {"maxDevices": K, "maxMemoryPerDevice": BYTES, "bandwidth": BYTES/S, "mbsInBatch": N,
//  "nodes": [{"id": I, "TMPCs": {"DEGREE": [{"id": NAME, "timePerSample": S, "parameterSize": BYTES, "memoryUsageA": BYTES,
//             "memoryUsageB": BYTES, "syncTimeFw": {"NEIGHBOUR": BYTES}, "syncTimeBw": {"NEIGHBOUR": BYTES}}, ...]}}, ...],
//  "edges": [{"sourceId": I, "destId": J, "communicationCost": BYTES}, ...]}
// Other keys are not read. Every node has a variant for one device, at most two for a degree, and sync bytes for exactly its edges.
//
// Source: the input and README of msr-fiddle/piper (Tarnawski et al. 2021, "Piper: Multidimensional Planner for DNN Parallelization").

#include "cohort/bench/published/piper.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/plan/search/cohort_instance.h"

namespace cohort {
namespace {

constexpr size_t kMostFileBytes = size_t{64} << 20, kMostNodes = 5000, kMostEdges = 100'000, kMostDegrees = 32;
constexpr double kMost = 1e30;  // Sums and products of what is smaller stay finite.
constexpr double kLeastPositive = 1e-9;

class Reader : JsonInstance {
 public:
  explicit Reader(const std::string& path) : JsonInstance(path, kMostFileBytes) {}

  PiperInstance read() {
    const Value& file = this->file();
    PiperInstance instance;
    instance.devices = count(file, "maxDevices", "the file");
    instance.batch = count(file, "mbsInBatch", "the file");
    instance.memory_bytes = number(file, "maxMemoryPerDevice", "the file", kLeastPositive);
    instance.bytes_per_second = number(file, "bandwidth", "the file", kLeastPositive);
    read_ids(list(file, "nodes", kMostNodes));
    read_edges(list(file, "edges", kMostEdges));
    order_nodes(instance);
    read_degrees(file["nodes"], instance);
    for (const int at : order_) read_node(file["nodes"][at], instance);
    return instance;
  }

 private:
  [[noreturn]] void refuse(const std::string& place, const std::string& expected, const std::string& found) const {
    wrong(place, expected, found);
  }

  double number(const Value& object, const char* key, const std::string& place, double least = 0) const {
    return JsonInstance::number(object, key, place, least, kMost);
  }

  int count(const Value& object, const char* key, const std::string& place) const {
    const double value = number(object, key, place, 1);
    if (value > std::numeric_limits<int>::max()) refuse(place, concat(key, " below 2^31"), concat(value));
    return static_cast<int>(value);
  }

  const Value& list(const Value& object, const char* key, size_t most) const {
    const Value& values = member(object, key, "the file");
    if (!values.is_array()) refuse(key, "a list", values.type_name());
    if (values.size() > most) refuse(key, concat("at most ", most), concat(values.size()));
    return values;
  }

  void read_ids(const Value& nodes) {
    if (nodes.empty()) refuse("nodes", "at least one node", "none");
    for (const Value& node : nodes) {
      const int64_t id = integer(node, "id", concat("node ", ids_.size(), " of the list"));
      if (!place_.emplace(id, static_cast<int>(ids_.size())).second) refuse("nodes", "every id once", concat(id, " twice"));
      ids_.push_back(id);
    }
  }

  int end_of(const Value& edge, const char* key, const std::string& place) const {
    const int64_t id = integer(edge, key, place);
    const auto found = place_.find(id);
    if (found == place_.end()) refuse(place, concat(key, " as the id of a node"), concat(id));
    return found->second;
  }

  void read_edges(const Value& edges) {
    for (const Value& edge : edges) {
      const std::string place = concat("edge ", bytes_.size(), " of the list");
      const std::pair<int, int> ends(end_of(edge, "sourceId", place), end_of(edge, "destId", place));
      if (!bytes_.emplace(ends, number(edge, "communicationCost", place)).second) refuse(place, "an edge that occurs once", "it twice");
    }
  }

  void order_nodes(PiperInstance& instance) {
    std::vector<std::pair<int, int>> edges;
    for (const auto& [ends, bytes] : bytes_) edges.push_back(ends);
    OrderedDag ordered = order_dag(static_cast<int>(ids_.size()), edges);
    if (ordered.order.size() < ids_.size()) refuse("edges", "a graph without cycles", "one");
    instance.dag = std::move(ordered.dag);
    order_ = std::move(ordered.order);
  }

  int degree_of(const std::string& text, const std::string& place) const {
    const std::optional<int64_t> degree = parse_integer(text);
    if (!degree || *degree < 1 || *degree > 1'000'000) refuse(place, "a tensor-parallel degree from 1 to 1000000", text);
    return static_cast<int>(*degree);
  }

  void read_degrees(const Value& nodes, PiperInstance& instance) const {
    std::set<int> degrees;
    for (size_t i = 0; i < nodes.size(); ++i) {
      const std::string place = concat("node ", ids_[i]);
      const Value& by_degree = member(nodes[i], "TMPCs", place);
      if (!by_degree.is_object() || !by_degree.contains("1")) refuse(place, "variants for \"1\" device in TMPCs", "none");
      for (const auto& [text, variants] : by_degree.items()) degrees.insert(degree_of(text, place));
      if (degrees.size() > kMostDegrees) refuse(place, concat("at most ", kMostDegrees, " degrees"), "more");
    }
    instance.degrees.assign(degrees.begin(), degrees.end());
  }

  std::vector<double> sync(const Value& variant, const char* key, const std::vector<int>& neighbours, const std::string& place) const {
    const Value& by_id = member(variant, key, place);
    if (!by_id.is_object() || by_id.size() != neighbours.size())
      refuse(place, concat(key, " for ", neighbours.size(), " edges"), concat(by_id.is_object() ? by_id.size() : 0));
    std::vector<double> bytes;
    for (const int neighbour : neighbours) {
      const auto found = by_id.find(std::to_string(ids_[order_[neighbour]]));
      if (found == by_id.end()) refuse(place, concat(key, " for node ", ids_[order_[neighbour]]), "none");
      bytes.push_back(number_of(*found, key, place, 0, kMost));
    }
    return bytes;
  }

  PiperVariant read_variant(const Value& value, const Dag& dag, int node, const std::string& place) const {
    const Value& id = member(value, "id", place);
    if (!id.is_string()) refuse(place, "the id of a variant as a string", id.type_name());
    return {.id = id.get<std::string>(),
            .seconds = number(value, "timePerSample", place),
            .parameter_bytes = number(value, "parameterSize", place),
            .bytes_per_micro_batch = number(value, "memoryUsageA", place),
            .fixed_bytes = number(value, "memoryUsageB", place),
            .sync_in_bytes = sync(value, "syncTimeFw", dag.before[node], place),
            .sync_out_bytes = sync(value, "syncTimeBw", dag.after[node], place)};
  }

  void read_node(const Value& value, PiperInstance& instance) const {
    const int number = static_cast<int>(instance.nodes.size()), at = order_[number];
    PiperNode node{
        .id = ids_[at], .variants = std::vector<std::vector<PiperVariant>>(instance.degrees.size()), .in_bytes = {}, .out_bytes = {}};
    for (const int before : instance.dag.before[number]) node.in_bytes.push_back(bytes_.at({order_[before], at}));
    for (const int after : instance.dag.after[number]) node.out_bytes.push_back(bytes_.at({at, order_[after]}));
    for (const auto& [text, variants] : value["TMPCs"].items()) {
      const std::string place = concat("node ", node.id, " degree ", quote_text(text));
      const int degree = degree_of(text, place);
      std::vector<PiperVariant>& read =
          node.variants[std::lower_bound(instance.degrees.begin(), instance.degrees.end(), degree) - instance.degrees.begin()];
      if (!variants.is_array() || variants.empty() || variants.size() > 2 || !read.empty())
        refuse(place, "a list of one or two variants", "another");
      for (const Value& variant : variants) read.push_back(read_variant(variant, instance.dag, number, place));
      if (read.size() == 2 && read[0].id == read[1].id) refuse(place, "every variant once", read[0].id + " twice");
    }
    instance.nodes.push_back(std::move(node));
  }

  std::vector<int64_t> ids_;
  std::map<int64_t, int> place_;
  std::map<std::pair<int, int>, double> bytes_;
  std::vector<int> order_;
};

}  // namespace

PiperInstance read_piper_instance(const std::string& path) { return Reader(path).read(); }

}  // namespace cohort
