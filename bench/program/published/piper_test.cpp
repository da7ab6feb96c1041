// Piper's instances: against all plans of small graphs, written down once more and slowly; files that are damaged.

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "bench/program/published/published_instances.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/random.h"
#include "cohort/base/text/json.h"
#include "tests/support/mutation.h"

namespace cohort {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A random instance; times are small integers, so that sums are exact.
Json random_instance(int num_nodes, uint64_t seed) {
  uint64_t draws = 0;
  const auto number = [&](uint64_t most) { return static_cast<double>(random_bits(seed, ++draws) % most); };
  std::vector<std::vector<int>> before(num_nodes), after(num_nodes);
  Json edges = Json::array();
  for (int to = 0; to < num_nodes; ++to)
    for (int from = 0; from < to; ++from) {
      if (number(5) > 1) continue;
      before[to].push_back(from);
      after[from].push_back(to);
      edges.push_back({{"sourceId", 10 + from}, {"destId", 10 + to}, {"communicationCost", number(6)}});
    }
  const auto sync = [&](const std::vector<int>& neighbours) {
    Json bytes = Json::object();
    for (const int node : neighbours) bytes[std::to_string(10 + node)] = number(3);
    return bytes;
  };
  const auto variant = [&](const char* id, int node, double seconds) {
    return Json{{"id", id},
                {"timePerSample", seconds},
                {"parameterSize", number(9)},
                {"memoryUsageA", number(6)},
                {"memoryUsageB", number(6)},
                {"syncTimeFw", sync(before[node])},
                {"syncTimeBw", sync(after[node])}};
  };
  Json nodes = Json::array();
  for (int node = 0; node < num_nodes; ++node) {
    Json degrees = Json::object();
    for (const int degree : {1, 2}) {
      if (degree == 2 && number(6) == 0) continue;
      Json variants = Json::array({variant("vanilla", node, number(20))});
      if (number(4) > 0) variants.push_back(variant("activation recomp", node, number(30)));
      degrees[std::to_string(degree)] = variants;
    }
    nodes.push_back({{"id", 10 + node}, {"TMPCs", degrees}});
  }
  return {{"maxDevices", 1 + seed % 4},
          {"maxMemoryPerDevice", 8 + number(10 * num_nodes)},
          {"bandwidth", 1 + number(8)},
          {"mbsInBatch", 6},
          {"nodes", nodes},
          {"edges", edges}};
}

/// All plans, from the last stage to the first.
struct Oracle {
  const Json& file;
  int num_nodes = static_cast<int>(file["nodes"].size()), devices = file["maxDevices"], batch = file["mbsInBatch"];
  double memory = file["maxMemoryPerDevice"], bandwidth = file["bandwidth"];

  bool closed(unsigned set) const {
    for (const Json& edge : file["edges"]) {
      const int from = edge["sourceId"].get<int>() - 10, to = edge["destId"].get<int>() - 10;
      if ((set >> to & 1) && !(set >> from & 1)) return false;
    }
    return true;
  }
  /// The least time of the slowest stage of the nodes `done`, with devices left and replicas behind them.
  double best(unsigned done, int left, int behind) const {
    if (done == 0) return 0;
    double least = kInfinity;
    for (unsigned begin = 0; begin < done; ++begin) {
      if ((begin & ~done) || !closed(begin)) continue;
      for (int degree = 1; degree <= 2; ++degree)
        for (int replicas = 1; replicas * degree <= left && behind + replicas <= batch; ++replicas) {
          if (batch % replicas) continue;
          const double time = stage(done & ~begin, degree, replicas, (behind + replicas + replicas - 1) / replicas);
          if (time < least) least = std::min(least, std::max(time, best(begin, left - replicas * degree, behind + replicas)));
        }
    }
    return least;
  }
  double stage(unsigned nodes, int degree, int replicas, int kept) const {
    double least = kInfinity;
    for (unsigned choice = 0; choice <= nodes; ++choice)
      if (!(choice & ~nodes)) least = std::min(least, stage_with(nodes, choice, degree, replicas, kept));
    return least;
  }
  double stage_with(unsigned nodes, unsigned choice, int degree, int replicas, int kept) const {
    double seconds = 0, weights = 0, bytes = 0, edge_bytes = 0;
    std::vector<const Json*> chosen(num_nodes);
    for (int node = 0; node < num_nodes; ++node) {
      if (!(nodes >> node & 1)) continue;
      const Json& degrees = file["nodes"][node]["TMPCs"];
      const std::string key = std::to_string(degree);
      const size_t at = choice >> node & 1;
      if (!degrees.contains(key) || degrees[key].size() <= at) return kInfinity;
      const Json& variant = degrees[key][at];
      chosen[node] = &variant;
      seconds += variant["timePerSample"].get<double>();
      weights += variant["parameterSize"].get<double>();
      bytes += variant["memoryUsageA"].get<double>() * kept + variant["memoryUsageB"].get<double>();
    }
    if (bytes > memory) return kInfinity;
    for (const Json& edge : file["edges"]) {
      const int from = edge["sourceId"].get<int>() - 10, to = edge["destId"].get<int>() - 10;
      if ((nodes >> from & 1) == (nodes >> to & 1)) continue;
      const Json& sync = nodes >> from & 1 ? (*chosen[from])["syncTimeBw"][std::to_string(10 + to)]
                                           : (*chosen[to])["syncTimeFw"][std::to_string(10 + from)];
      edge_bytes += 2 * (edge["communicationCost"].get<double>() + sync.get<double>());
    }
    return (edge_bytes / replicas + 4 * (replicas - 1.0) * weights / replicas / batch) / bandwidth + seconds / replicas;
  }
  double best() const { return best((1u << num_nodes) - 1, devices, 0); }
};

class Files {
 public:
  InstanceAnswer solve(const std::string& text, const InstanceOptions& options = {}) const {
    std::ofstream(folder_ / "piper.json", std::ios::binary | std::ios::trunc) << text;
    return solve_piper(folder_ / "piper.json", options);
  }
  /// The objective; infinity where no plan fits, and what was said then.
  double objective(const Json& file, const InstanceOptions& options = {}, std::string* said = nullptr) const {
    try {
      return solve(file.dump(), options).objective;
    } catch (const Error& error) {
      REQUIRE_MESSAGE(error.code() == ErrorCode::kInfeasible, error.what());
      if (said) *said = error.what();
      return kInfinity;
    }
  }
  std::string refusal(const std::string& text, const InstanceOptions& options = {}) const {
    try {
      solve(text, options);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  }

 private:
  TemporaryFolder folder_;
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("piper: as all plans say") {
  const Files files;
  int planned = 0, recomputed = 0;
  for (uint64_t seed = 1; seed <= 250; ++seed) {
    const Json file = random_instance(1 + seed % 4, seed);
    const double best = Oracle{.file = file}.best();
    if (best == kInfinity) {
      CHECK(files.objective(file) == kInfinity);
      continue;
    }
    const InstanceAnswer answer = files.solve(file.dump());
    ++planned;
    recomputed += has(answer.plan.dump(), "recomp");
    REQUIRE(answer.optimal);
    CHECK(answer.objective == doctest::Approx(best).epsilon(1e-8));
    CHECK(answer.lower_bound <= answer.objective);
  }
  CHECK(planned > 100);
  CHECK(recomputed > 20);
}

TEST_CASE("piper: who finds no plan names the least memory") {
  const Files files;
  int refused = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Json file = random_instance(4, seed);
    file["maxMemoryPerDevice"] = 2;
    std::string said;
    if (files.objective(file, {}, &said) != kInfinity) continue;
    ++refused;
    const size_t at = said.find("; with ");
    REQUIRE_MESSAGE(at != std::string::npos, said);
    const double enough = std::stod(said.substr(at + 7));
    file["maxMemoryPerDevice"] = enough;
    CHECK(files.objective(file) < kInfinity);
    file["maxMemoryPerDevice"] = enough - 1;
    if (enough > 1) CHECK(files.objective(file) == kInfinity);
  }
  CHECK(refused > 20);
}

TEST_CASE("piper: more devices, memory and bandwidth are never worse") {
  const Files files;
  for (uint64_t seed = 1; seed <= 15; ++seed) {
    const Json file = random_instance(10, seed);
    double last = kInfinity;
    InstanceOptions options;
    for (int step = 0; step < 9; ++step) {
      options.devices = 2 << (step + 2) / 3;
      options.memory_bytes = 40 << (step + 1) / 3;
      options.bytes_per_second = {2.0 + step / 3};
      const double objective = files.objective(file, options);
      CHECK(objective <= last * (1 + 1e-8));
      last = objective;
    }
  }
}

TEST_CASE("piper: too many downsets, and no time") {
  const Files files;
  Json file = random_instance(1, 2), node = file["nodes"][0];
  file["maxMemoryPerDevice"] = 1e9;
  file["maxDevices"] = 4;
  file["nodes"] = Json::array();
  for (int id = 0; id < 30; ++id) {
    node["id"] = id;
    file["nodes"].push_back(node);
  }
  const InstanceAnswer answer = files.solve(file.dump());
  CHECK(answer.lower_bound <= answer.objective);
  InstanceOptions options;
  options.search_seconds = 0;
  CHECK(has(files.refusal(file.dump(), options), "no time"));
}

TEST_CASE("piper: refusals name the place, expected and found") {
  const Files files;
  const Json good = random_instance(3, 5);
  const auto refused = [&](const auto& change) {
    Json file = good;
    change(file);
    return files.refusal(file.dump());
  };
  CHECK(files.refusal(good.dump()) != "");
  CHECK(has(refused([](Json& f) { f.erase("maxDevices"); }), "expected \"maxDevices\", found none"));
  CHECK(has(refused([](Json& f) { f["bandwidth"] = 0; }), "\"bandwidth\": expected a finite number of at least 1e-09"));
  CHECK(has(refused([](Json& f) { f["nodes"][0]["TMPCs"]["1"][0]["timePerSample"] = -1; }),
            "\"timePerSample\": expected a finite number of at least 0, found -1"));
  CHECK(has(refused([](Json& f) { f["nodes"][0]["TMPCs"]["1"][0]["parameterSize"] = nullptr; }),
            "\"parameterSize\": expected a finite number of at least 0, found null"));
  CHECK(has(refused([](Json& f) { f["nodes"][0]["TMPCs"]["x"] = f["nodes"][0]["TMPCs"]["1"]; }), "a tensor-parallel degree from 1"));
  CHECK(has(refused([](Json& f) { f["nodes"][0]["TMPCs"].erase("1"); }), "variants for \"1\" device"));
  CHECK(has(refused([](Json& f) { f["nodes"][0]["TMPCs"]["1"][0]["syncTimeFw"]["77"] = 1; }), "syncTimeFw for"));
  CHECK(has(refused([](Json& f) { f["nodes"][1]["id"] = f["nodes"][0]["id"]; }), "every id once"));
  CHECK(has(refused([](Json& f) { f["edges"].push_back({{"sourceId", 10}, {"destId", 99}, {"communicationCost", 1}}); }),
            "destId as the id of a node"));
  CHECK(
      has(refused([](Json& f) { f["edges"].push_back({{"sourceId", 10}, {"destId", 10}, {"communicationCost", 1}}); }), "without cycles"));
  CHECK(has(refused([](Json& f) { f["nodes"] = Json::array(); }), "at least one node"));
  InstanceOptions options;
  options.devices = 0;
  CHECK(has(files.refusal(good.dump(), options), "devices"));
}

TEST_CASE("mutation: piper") {
  const Files files;
  Json file = random_instance(3, 5);
  file["maxMemoryPerDevice"] = 100;
  const std::string whole = file.dump();
  int read = 0, refused = 0;
  InstanceOptions options;
  options.search_seconds = 1;
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    const std::string what = files.refusal(mutated(whole, seed), options);
    REQUIRE_MESSAGE(what.find('\n') == std::string::npos, what);
    ++(what == "none" ? read : refused);
  }
  for (size_t size = 0; size < whole.size(); size += 5) files.refusal(whole.substr(0, size));
  CHECK(read > 20);
  CHECK(refused > 500);
}

}  // namespace
}  // namespace cohort
