// Reads and solves planner instances (docs/formats/instance.md): layers with times and bytes, equal devices, one kind of link. The search
// is search_stages(). Options override the values of the file.
#include "cohort/plan/search/cohort_instance.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/plan/cut/downsets.h"

namespace cohort {
namespace {

constexpr size_t kMostBytes = size_t{64} << 20, kMostLayers = 2000;
constexpr double kMostNumber = 1e100;
constexpr int kMostDevices = 256, kMostMicroBatches = 1'000'000;

class Reader : JsonInstance {
 public:
  explicit Reader(const std::string& path) : JsonInstance(path, kMostBytes) {}

  StageProblem read(const InstanceOptions& options) {
    check_names(file(), "the file", {"name", "layers", "edges", "devices", "memory_bytes", "link", "objective", "microbatches", "allow"});
    StageProblem problem;
    problem.num_devices = options.devices ? *options.devices : count("devices", 1, kMostDevices);
    problem.memory_bytes = options.memory_bytes              ? *options.memory_bytes
                           : file().contains("memory_bytes") ? number(file(), "memory_bytes", "the file")
                                                             : std::numeric_limits<double>::infinity();
    read_objective(problem, options);
    read_allow(problem);
    read_layers(problem, options);
    read_edges(problem);
    return problem;
  }

 private:
  void check_names(const Value& object, const std::string& place, const std::set<std::string>& names) const {
    if (!object.is_object()) wrong(place, "an object", object);
    for (const auto& [name, value] : object.items())
      if (!names.contains(name)) fail(ErrorCode::kBadInput, path(), ": ", place, ": expected no ", quote_text(name), ", found one");
  }

  double number(const Value& object, const char* name, const std::string& place) const {
    return JsonInstance::number(object, name, place, 0, kMostNumber);
  }

  void read_objective(StageProblem& problem, const InstanceOptions& options) const {
    const Value objective = file().value("objective", Value("throughput"));
    if (objective != "throughput" && objective != "step") wrong("\"objective\"", "\"throughput\" or \"step\"", objective);
    const int micro_batches = file().contains("microbatches") ? count("microbatches", 1, kMostMicroBatches) : 1;
    if (objective == "step") problem.num_micro_batches = options.batch.value_or(micro_batches);
  }

  void read_allow(StageProblem& problem) const {
    if (!file().contains("allow")) return;
    const Value& allow = file()["allow"];
    problem.may_pipeline = problem.may_replicate = false;
    if (!allow.is_array()) wrong("\"allow\"", "a list", allow);
    for (const Value& what : allow) {
      if (what != "pipeline" && what != "replicate") wrong("\"allow\"", "\"pipeline\" or \"replicate\"", what);
      (what == "pipeline" ? problem.may_pipeline : problem.may_replicate) = true;
    }
  }

  void read_layers(StageProblem& problem, const InstanceOptions& options) const {
    double latency_seconds = 0, bytes_per_second = 0;
    if (file().contains("link")) {
      check_names(file()["link"], "\"link\"", {"latency_seconds", "bytes_per_second"});
      if (file()["link"].contains("latency_seconds")) latency_seconds = number(file()["link"], "latency_seconds", "\"link\"");
      bytes_per_second = number(file()["link"], "bytes_per_second", "\"link\"");
    }
    if (!options.bytes_per_second.empty()) bytes_per_second = options.bytes_per_second.front();
    const Value& layers = member(file(), "layers", "the file");
    if (!layers.is_array() || layers.empty() || layers.size() > kMostLayers)
      wrong("\"layers\"", concat("a list of 1 to ", kMostLayers, " layers"), layers);
    std::set<std::string> names;
    for (size_t i = 0; i < layers.size(); ++i) {
      const std::string place = concat("layers[", i, "]");
      check_names(layers[i], place, {"name", "forward_seconds", "backward_seconds", "weight_bytes", "stash_bytes", "output_bytes"});
      if (layers[i].contains("name")) {
        const Value& name = layers[i]["name"];
        if (!name.is_string() || !names.insert(name.get<std::string>()).second) wrong(place + " \"name\"", "a name of its own", name);
      }
      const double output_bytes = number(layers[i], "output_bytes", place);
      problem.layers.push_back({.forward_seconds = number(layers[i], "forward_seconds", place),
                                .backward_seconds = number(layers[i], "backward_seconds", place),
                                .weight_bytes = number(layers[i], "weight_bytes", place),
                                .stash_bytes = number(layers[i], "stash_bytes", place),
                                .transfer_seconds = latency_seconds + (bytes_per_second > 0 ? output_bytes / bytes_per_second : 0)});
    }
  }

  void read_edges(StageProblem& problem) const {
    const Value& edges = member(file(), "edges", "the file");
    if (!edges.is_array()) wrong("\"edges\"", "a list", edges);
    for (size_t i = 0; i < edges.size(); ++i) {
      const auto is_layer = [&](const Value& end) {
        return end.is_number_integer() && end >= 0 && end < static_cast<int64_t>(problem.layers.size());
      };
      if (!edges[i].is_array() || edges[i].size() != 2 || !is_layer(edges[i][0]) || !is_layer(edges[i][1]) || edges[i][0] == edges[i][1])
        wrong(concat("edges[", i, "]"), concat("two different layers from 0 to ", problem.layers.size() - 1), edges[i]);
      problem.edges.emplace_back(edges[i][0].get<int>(), edges[i][1].get<int>());
    }
    if (!(problem.edges.size() < 10'000'000)) wrong("\"edges\"", "at most 10 million edges", problem.edges.size());
  }
};

[[noreturn]] void fail_infeasible(const std::string& path, const StageProblem& problem) {
  double all = 0, largest = 0;
  for (const StageProblem::Layer& layer : problem.layers) {
    all += layer.weight_bytes + layer.stash_bytes;
    largest = std::max(largest, layer.weight_bytes + layer.stash_bytes);
  }
  fail(ErrorCode::kInfeasible, path, ": no plan fits in \"memory_bytes\" of ", problem.memory_bytes, " on ", problem.num_devices,
       " devices: the layers need ", all, " bytes, the largest one ", largest, ", with one micro-batch; give more memory (--memory)",
       largest <= problem.memory_bytes ? " or more devices (--devices)" : "");
}

Json stages_json(const StageAnswer& answer) {
  Json stages = Json::array();
  int device = 0;
  for (const StageAnswer::Stage& stage : answer.stages) {
    Json devices = Json::array();
    for (int r = 0; r < stage.num_devices; ++r) devices.push_back(device++);
    stages.push_back({{"layers", stage.layers}, {"devices", std::move(devices)}, {"load_seconds", stage.load_seconds}});
  }
  return stages;
}

}  // namespace

InstanceAnswer solve_cohort_instance(const std::string& path, const InstanceOptions& options) {
  const double start = steady_seconds();
  const StageProblem problem = Reader(path).read(options);
  std::optional<StageAnswer> found;
  try {
    found = search_stages(problem, options.search_seconds);
  } catch (const Error& error) {
    fail(error.code(), path, ": ", error.what());
  }
  if (!found) fail_infeasible(path, problem);
  return {.objective = found->objective,
          .lower_bound = found->lower_bound,
          .bound_by = found->bound_by,
          .optimal = found->optimal,
          .search_seconds = steady_seconds() - start,
          .plan = {{"stages", stages_json(*found)}}};
}

JsonInstance::JsonInstance(const std::string& path, size_t most_bytes)
    : path_(path), json_(parse_strict_json(read_small_file(path, most_bytes), {.path = path})) {}

void JsonInstance::wrong(const std::string& place, const std::string& expected, const Value& found) const {
  const std::string text = found.dump(-1, ' ', true, Value::error_handler_t::replace);
  fail(ErrorCode::kBadInput, path_, ": ", place, ": expected ", expected, ", found ", text.size() > 60 ? text.substr(0, 60) + "..." : text);
}

void JsonInstance::wrong_value(const std::string& place, const char* key, const std::string& expected, const Value& found) const {
  wrong(concat(place, " \"", key, '"'), expected, found);
}

const JsonInstance::Value& JsonInstance::member(const Value& object, const char* key, const std::string& place) const {
  if (!object.is_object()) wrong(place, "an object", object);
  const auto at = object.find(key);
  if (at != object.end()) return *at;
  fail(ErrorCode::kBadInput, path_, ": ", place, ": expected \"", key, "\", found none");
}

double JsonInstance::number(const Value& object, const char* key, const std::string& place, double least, double most) const {
  return number_of(member(object, key, place), key, place, least, most);
}

double JsonInstance::number_of(const Value& value, const char* key, const std::string& place, double least, double most) const {
  if (value.is_number() && value.get<double>() >= least && value.get<double>() <= most) return value.get<double>();
  const bool too_large = value.is_number() && value.get<double>() > most;
  wrong_value(place, key, too_large ? concat("a number of at most ", most) : concat("a finite number of at least ", least), value);
}

int JsonInstance::count(const char* key, int least, int most) const {
  const double value = number(json_, key, "the file");
  if (value != std::floor(value) || value < least || value > most)
    wrong(concat('"', key, '"'), concat("a whole number from ", least, " to ", most), json_[key]);
  return static_cast<int>(value);
}

int64_t JsonInstance::integer(const Value& object, const char* key, const std::string& place) const {
  const Value& value = member(object, key, place);
  if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() >> 63))
    wrong_value(place, key, "a whole number", value);
  return value.get<int64_t>();
}

}  // namespace cohort
