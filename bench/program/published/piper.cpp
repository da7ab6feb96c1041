// Plans for Piper's instances: stages with replicas, a tensor-parallel degree and a variant for each layer, under memory.
//
//  1. The file is read; options override its four values.
//  2. Bounds from the instance alone: "area", the sum of least degree x seconds of the nodes over all devices; "largest layer", a node with
//     the degree and replicas that are best for it.
//  3. Is there any plan? If not, bisection over memory finds the least with which there is one, and Error(kInfeasible) names it.
//  4. Bisection over the time of the slowest stage with the exact test of piper_limit.cpp; a plan that is found lowers the upper end to its
//     own objective. It ends when the ends meet to 1e-9, proven over all downsets, or at the deadline.
//  5. Graphs with many downsets are searched over prefixes of a few linear orders first; with more than kMostDownsets over these alone.
//
// Cost: some 30 tests. Source: Tarnawski et al. 2021, "Piper: Multidimensional Planner for DNN Parallelization", sections 3 and 4. We
// differ as piper_limit.cpp says: exact in its class, and with a proof.
#include "bench/program/published/piper.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "bench/program/published/instance_search.h"
#include "bench/program/published/published_instances.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/plan/search/cohort_instance.h"

namespace cohort {
namespace {

constexpr size_t kMostDownsets = 200'000, kFewDownsets = 2000;
constexpr double kInfinity = std::numeric_limits<double>::infinity(), kClose = 1e-9;
constexpr int kMostDevices = 100'000, kMostBatch = 10'000'000;

void take_options(PiperInstance& instance, const InstanceOptions& options, const std::string& path) {
  if (!options.machines.empty()) {
    double devices = 1;
    for (const int machines : options.machines) devices *= machines;
    instance.devices = static_cast<int>(std::clamp(devices, 0.0, 1e9));
  }
  instance.devices = options.devices.value_or(instance.devices);
  instance.batch = options.batch.value_or(instance.batch);
  instance.memory_bytes = options.memory_bytes.value_or(instance.memory_bytes);
  if (!options.bytes_per_second.empty()) instance.bytes_per_second = options.bytes_per_second[0];
  const auto check = [&](const char* what, double value, double least, double most) {
    if (!(value >= least && value <= most))
      fail(ErrorCode::kBadInput, quote_text(path), ": expected ", what, " from ", least, " to ", most, ", found ", value);
  };
  check("levels of bandwidth", static_cast<double>(options.bytes_per_second.size()), 0, 1);
  check("devices", instance.devices, 1, kMostDevices);
  check("micro-batches in a batch", instance.batch, 1, kMostBatch);
  check("bytes of memory", instance.memory_bytes, 1e-9, 1e30);
  check("a bandwidth", instance.bytes_per_second, 1e-9, 1e30);
}

class Planner : InstanceSearch {
 public:
  Planner(const std::string& path, const InstanceOptions& options)
      : InstanceSearch(options.search_seconds), path_(path), instance_(read_piper_instance(path)) {
    take_options(instance_, options, path);
    find_bound();
  }

  InstanceAnswer solve() {
    const Downsets all = all_downsets(instance_.dag, kMostDownsets);
    if (all.size() == 0 || all.size() > kFewDownsets) search(linear_downsets(instance_.dag, output_bytes()));
    if (all.size() > 0) search(all);
    if (answer_.plan.empty()) refuse(all);
    return finish();
  }

 private:
  std::vector<double> output_bytes() const {
    std::vector<double> bytes;
    for (const PiperNode& node : instance_.nodes)
      bytes.push_back(node.out_bytes.empty() ? 0 : *std::max_element(node.out_bytes.begin(), node.out_bytes.end()));
    return bytes;
  }

  template <typename Use>
  void for_each_variant(const PiperNode& node, const Use& use) const {
    for (size_t i = 0; i < node.variants.size(); ++i)
      for (const PiperVariant& variant : node.variants[i])
        if (instance_.degrees[i] <= instance_.devices) use(variant, instance_.degrees[i]);
  }

  double area_seconds(const PiperNode& node) const {
    double least = kInfinity;
    for_each_variant(node, [&](const PiperVariant& variant, int degree) { least = std::min(least, degree * variant.seconds); });
    return least;
  }

  /// Least seconds of a stage that holds the node, with the replicas that are best for it, one or as many as there can be.
  double least_seconds(const PiperNode& node) const {
    double least = kInfinity;
    for_each_variant(node, [&](const PiperVariant& variant, int degree) {
      const double most = std::min(instance_.devices / degree, instance_.batch);
      const double exchange = 4 * variant.parameter_bytes / instance_.batch / instance_.bytes_per_second;
      least = std::min({least, variant.seconds, (variant.seconds + (most - 1) * exchange) / most});
    });
    return least;
  }

  void find_bound() {
    double area = 0, largest = 0;
    for (const PiperNode& node : instance_.nodes) {
      area_.push_back(area_seconds(node));
      area += area_.back();
      largest = std::max(largest, least_seconds(node));
    }
    take_bound(area / instance_.devices, "area");
    take_bound(largest, "largest layer");
  }

  void take_plan(const Downsets& sets, const std::vector<PiperStage>& stages) {
    answer_.objective = 0;
    Json list = Json::array();
    for (const PiperStage& stage : stages) {
      answer_.objective = std::max(answer_.objective, stage.seconds);
      list.push_back(stage_json(sets, stage));
    }
    answer_.plan = {{"devices", instance_.devices},
                    {"memory", instance_.memory_bytes},
                    {"bandwidth", instance_.bytes_per_second},
                    {"batch", instance_.batch},
                    {"stages", std::move(list)}};
  }

  Json stage_json(const Downsets& sets, const PiperStage& stage) const {
    Json ids = Json::array(), variants = Json::object();
    const std::vector<int> nodes = sets.between(stage.begin, stage.end);
    for (size_t i = 0; i < nodes.size(); ++i) {
      const PiperNode& node = instance_.nodes[nodes[i]];
      ids.push_back(node.id);
      variants[std::to_string(node.id)] = node.variants[stage.degree][stage.variant[i]].id;
    }
    return {{"nodes", ids},
            {"dataParallelDegree", stage.replicas},
            {"tensorParallelDegree", instance_.degrees[stage.degree]},
            {"TMPCids", variants}};
  }

  /// Keeps a plan below the limit.
  PiperVerdict test(const Downsets& sets, const std::vector<double>& area, double limit) {
    const PiperLimitResult result = search_piper_limit(instance_, sets, area, limit, deadline());
    if (result.verdict == PiperVerdict::kPlan) take_plan(sets, result.stages);
    return result.verdict;
  }

  void search(const Downsets& sets) {
    const std::vector<double> area = sets.sums(area_);
    bool again = !answer_.plan.empty();  // A plan of linear orders is often the best: that limit is tried first.
    if (!again && test(sets, area, kInfinity) != PiperVerdict::kPlan) return;
    double low = answer_.lower_bound;
    while (answer_.objective > low * (1 + kClose) && has_time()) {
      const double limit = again     ? answer_.objective * (1 - kClose / 2)
                           : low > 0 ? std::sqrt(low) * std::sqrt(answer_.objective)
                                     : answer_.objective / 16;
      again = false;
      const PiperVerdict verdict = test(sets, area, limit);
      if (verdict == PiperVerdict::kPlan) continue;
      low = limit;
      if (verdict == PiperVerdict::kNotKnown) proven_ = false;
      if (proven_ && sets.complete()) take_bound(limit, "exhaustive search");
    }
  }

  [[noreturn]] void refuse(const Downsets& all) {
    const bool complete = all.size() > 0;
    const Downsets sets = complete ? all : linear_downsets(instance_.dag, output_bytes());
    if (!has_time()) fail(ErrorCode::kInfeasible, quote_text(path_), ": no time left to find a plan; search for longer");
    const double given = instance_.memory_bytes, enough = least_memory_bytes(sets);
    fail(ErrorCode::kInfeasible, quote_text(path_), ": no plan fits into ", static_cast<int64_t>(std::min(given, 9e18)),
         " bytes of memory on ", instance_.devices, " devices", complete ? "" : " (over the orders tried)", "; with ",
         static_cast<int64_t>(std::min(enough, 9e18)), " bytes a device there is one");
  }

  /// One stage on one device always fits into what its layers take.
  double least_memory_bytes(const Downsets& sets) {
    const std::vector<double> area = sets.sums(area_);
    double low = std::floor(instance_.memory_bytes), high = 0;
    for (const PiperNode& node : instance_.nodes) {
      double least = kInfinity;
      for (const PiperVariant& variant : node.variants[0]) least = std::min(least, variant.bytes_per_micro_batch + variant.fixed_bytes);
      high += least;
    }
    high = std::ceil(high);
    while (high - low > std::max(1.0, high * 1e-12) && has_time()) {
      instance_.memory_bytes = std::floor((low + high) / 2);
      const PiperVerdict verdict = search_piper_limit(instance_, sets, area, kInfinity, deadline()).verdict;
      (verdict == PiperVerdict::kPlan ? high : low) = instance_.memory_bytes;
    }
    return high;
  }

  std::string path_;
  PiperInstance instance_;
  std::vector<double> area_;
  bool proven_ = true;  // No test was cut short.
};

}  // namespace

InstanceAnswer solve_piper(const std::string& path, const InstanceOptions& options) { return Planner(path, options).solve(); }

// Reads an instance of Piper.
//
// {"maxDevices": K, "maxMemoryPerDevice": BYTES, "bandwidth": BYTES/S, "mbsInBatch": N,
//  "nodes": [{"id": I, "TMPCs": {"DEGREE": [{"id": NAME, "timePerSample": S, "parameterSize": BYTES, "memoryUsageA": BYTES,
//             "memoryUsageB": BYTES, "syncTimeFw": {"NEIGHBOUR": BYTES}, "syncTimeBw": {"NEIGHBOUR": BYTES}}, ...]}}, ...],
//  "edges": [{"sourceId": I, "destId": J, "communicationCost": BYTES}, ...]}
// Other keys are not read. Every node has a variant for one device, at most two for a degree, and sync bytes for exactly its edges.
//
// Source: the input and README of msr-fiddle/piper (Tarnawski et al. 2021, "Piper: Multidimensional Planner for DNN Parallelization").
namespace {

constexpr size_t kMostFileBytes = size_t{64} << 20, kMostNodes = 5000, kMostEdges = 100'000, kMostDegrees = 32;
constexpr double kMost = 1e30;  // Sums and products of smaller values stay finite.
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
