// Instances of dnn-partitioning: cases worked by hand, what is refused, and damaged files.
#include "bench/program/published/dnn_partitioning.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <random>
#include <set>

#include "bench/program/published/published_instances.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "tests/support/mutation.h"

namespace cohort {
namespace {

std::string write(const TemporaryFolder& folder, const std::string& text, const std::string& name = "i.json") {
  std::ofstream(folder / name, std::ios::binary | std::ios::trunc) << text;
  return folder / name;
}

Json node(int id) {
  return {{"id", id},         {"supportedOnFpga", 1}, {"cpuLatency", 30.0}, {"fpgaLatency", 3.0}, {"isBackwardNode", 0},
          {"colorClass", id}, {"size", 10.0}};
}

Json edge(int from, int to, double cost) { return {{"sourceId", from}, {"destId", to}, {"cost", cost}}; }

/// Four nodes, 0 -> 1 -> 2 -> 3 and 0 -> 3.
Json graph() {
  return {{"maxSizePerFPGA", 25},
          {"maxFPGAs", 2},
          {"maxCPUs", 1},
          {"nodes", {node(0), node(1), node(2), node(3)}},
          {"edges", {edge(0, 1, 1), edge(0, 3, 1), edge(1, 2, 2), edge(2, 3, 4)}}};
}

/// The one line that refuses it.
std::string refusal(const std::string& text, ErrorCode code = ErrorCode::kBadInput) {
  const TemporaryFolder folder;
  const std::string path = write(folder, text);
  try {
    solve_dnn_partitioning(path, {});
  } catch (const Error& error) {
    const std::string what = error.what();
    CHECK(error.code() == code);
    CHECK(what.find('\n') == std::string::npos);
    CHECK(what.find(path) != std::string::npos);
    return what;
  }
  FAIL("accepted: " << text);
  return "";
}

/// One thing of it changed.
Json with(Json json, const char* pointer, const Json& value) {
  json[Json::json_pointer(pointer)] = value;
  return json;
}

TEST_CASE("dnn-partitioning: the plan of four nodes that no other beats, and its form") {
  const TemporaryFolder folder;
  const InstanceAnswer answer = solve_dnn_partitioning(write(folder, graph().dump()), {});
  CHECK(answer.objective == doctest::Approx(9));  // {0, 1} | {2, 3}: 3 + 3 + 1 + 2 on both. Memory holds two nodes.
  CHECK(answer.optimal);
  CHECK(answer.lower_bound == doctest::Approx(9));
  REQUIRE(answer.plan["devices"].size() == 2);
  std::multiset<int> ids;
  for (const char* kind : {"devices", "cpus"})
    for (const Json& list : answer.plan[kind])
      for (const Json& id : list) ids.insert(id.get<int>());
  CHECK(ids == std::multiset<int>{0, 1, 2, 3});
  CHECK(solve_dnn_partitioning(folder / "i.json", {.devices = 1, .memory_bytes = 40}).objective == doctest::Approx(12));
}

TEST_CASE("dnn-partitioning: nodes of a colour stay together, backward ones too") {
  Json colored = graph();
  colored["maxSizePerFPGA"] = 1000;
  for (const int id : {0, 3}) colored["nodes"][id]["colorClass"] = "same";
  colored["nodes"][3]["isBackwardNode"] = true;
  const TemporaryFolder folder;
  const InstanceAnswer answer = solve_dnn_partitioning(write(folder, colored.dump()), {});
  for (const Json& list : answer.plan["devices"]) {
    const std::set<int> ids(list.begin(), list.end());
    CHECK(ids.contains(0) == ids.contains(3));
  }
}

TEST_CASE("dnn-partitioning: latency by hand") {
  const TemporaryFolder folder;
  Json text = graph();
  text["objective"] = "latency";
  const std::string path = write(folder, text.dump());
  const PartitionGraph graph = read_partition_graph(path, {});
  REQUIRE(graph.latency);
  LatencyClock clock(graph);
  CHECK(clock.time({0, 0, 1, 1}) == doctest::Approx(18));  // 6 + 3 out, then 3 in + 6.
  CHECK(clock.time({0, 1, 0, 1}) == doctest::Approx(4 + (1 + 3 + 2) + (2 + 3 + 4) + (1 + 4 + 3)));
  CHECK(clock.time({2, 2, 2, 2}) == doctest::Approx(120));
  const InstanceAnswer answer = solve_dnn_partitioning(path, {});
  CHECK(answer.objective == doctest::Approx(18));
  CHECK(answer.lower_bound == doctest::Approx(12));
  CHECK(answer.bound_by == "critical path");
  const InstanceAnswer roomy = solve_dnn_partitioning(path, {.memory_bytes = 40});
  CHECK(roomy.objective == doctest::Approx(12));
  CHECK(roomy.optimal);
}

TEST_CASE("dnn-partitioning: latency of random small graphs is the best of all placements nearly always, and never below the bound") {
  std::mt19937 random(1);
  int equal = 0;
  for (int round = 0; round < 12; ++round) {
    Json text = graph();
    text["objective"] = "latency";
    text["nodes"] = Json::array(), text["edges"] = Json::array();
    for (int i = 0; i < 6; ++i) {
      text["nodes"].push_back(node(i));
      text["nodes"][i]["fpgaLatency"] = random() % 9, text["nodes"][i]["cpuLatency"] = 1 + random() % 20;
      const double cost = random() % 5;
      for (int to = i + 1; to < 6; ++to)
        if (random() % 3 == 0) text["edges"].push_back(edge(i, to, cost));
    }
    const TemporaryFolder folder;
    const std::string path = write(folder, text.dump());
    const PartitionGraph graph = read_partition_graph(path, {});
    const LoadProblem problem = load_problem_of(graph);
    LatencyClock clock(graph);
    double best = std::numeric_limits<double>::infinity();
    for (int code = 0; code < 729; ++code) {
      Placement placement;
      for (int i = 0, rest = code; i < 6; ++i, rest /= 3) placement.push_back(rest % 3);
      if (fits(problem, placement)) best = std::min(best, clock.time(placement));
    }
    const InstanceAnswer answer = solve_dnn_partitioning(path, {});
    REQUIRE(answer.objective >= best * (1 - 1e-9));
    REQUIRE(answer.lower_bound <= best * (1 + 1e-9));
    equal += answer.objective <= best * (1 + 1e-9);
  }
  CHECK(equal >= 11);
}

TEST_CASE("dnn-partitioning: what is wrong is named with its place") {
  const auto says = [](const Json& json, const std::string& part) {
    const std::string what = refusal(json.dump());
    CHECK_MESSAGE(what.find(part) != std::string::npos, what);
  };
  says(with(graph(), "/nodes/1/id", 0), "nodes[1] \"id\": expected an id of its own, found 0");
  says(with(graph(), "/nodes/1/fpgaLatency", -1), "nodes[1] \"fpgaLatency\": expected a finite number of at least 0, found -1");
  says(with(graph(), "/nodes/2/size", "x"), "nodes[2] \"size\"");
  says(with(graph(), "/nodes/2/supportedOnFpga", 2), "nodes[2] \"supportedOnFpga\"");
  says(with(graph(), "/edges/0/destId", 9), "edges[0] \"destId\": expected the id of a node, found 9");
  says(with(graph(), "/edges/0/destId", 0), "edges[0]: expected an edge between two nodes");
  says(with(graph(), "/edges/1/cost", 5), "edges[1] \"cost\": expected the 1 of the other edges out of node 0, found 5");
  says(with(graph(), "/edges/3/destId", 0), "expected no cycle");
  says(with(graph(), "/nodes/0/isBackwardNode", 1), "from a backward node to a forward one");
  says(with(graph(), "/maxFPGAs", 0), "\"maxFPGAs\": expected a whole number from 1");
  says(with(graph(), "/maxFPGAs", 1.5), "\"maxFPGAs\": expected a whole number from 1");
  says(with(graph(), "/maxCPUs", -1), "\"maxCPUs\"");
  says(with(graph(), "/nodes", Json::array()), "\"nodes\": expected at least one node");
  says(with(graph(), "/objective", "speed"), "\"objective\"");
  says(with(graph(), "/nodes/0/cpuLatency", 1e300), "added up");
  Json no_edges = graph();
  no_edges.erase("edges");
  says(no_edges, "expected \"edges\", found none");
  const std::string cut_off = graph().dump();
  for (const size_t length : {size_t{0}, size_t{1}, cut_off.size() / 2, cut_off.size() - 1}) refusal(cut_off.substr(0, length));
  Json small = graph();
  small["maxCPUs"] = 0, small["maxSizePerFPGA"] = 5;
  CHECK(refusal(small.dump(), ErrorCode::kInfeasible).find("more memory") != std::string::npos);
}

TEST_CASE("mutation: dnn-partitioning") {
  const TemporaryFolder folder;
  const std::string whole = graph().dump();
  int solved = 0, refused = 0;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    const std::string path = write(folder, mutated(whole, seed));
    try {
      const InstanceAnswer answer = solve_dnn_partitioning(path, {.search_seconds = 0.05});
      REQUIRE(answer.objective >= answer.lower_bound);
      ++solved;
    } catch (const Error& error) {
      const std::string what = error.what();
      REQUIRE_MESSAGE((error.code() == ErrorCode::kBadInput || error.code() == ErrorCode::kInfeasible), what);
      REQUIRE_MESSAGE(what.find('\n') == std::string::npos, what);
      ++refused;
    }
  }
  CHECK(solved > 2);
  CHECK(refused > 300);
}

}  // namespace
}  // namespace cohort
