// PipeDream's profiles: against all plans of small graphs, written down once more and slowly; files that are damaged.

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

constexpr char kFile[] =
    "node1 -- Input0 -- forward_compute_time=9.0, backward_compute_time=0.0, activation_size=9.0, parameter_size=0.000\n"
    "node2 -- Conv2d(3, 64, kernel_size=(3, 3)) -- forward_compute_time=1000, backward_compute_time=2000, activation_size=8, "
    "parameter_size=3\n"
    "\n"
    "node3 -- LSTM -- forward_compute_time=1000, backward_compute_time=1000, activation_size=[4.0; 4.0], parameter_size=6 \n"
    "node5 -- __getitem__(1) -- forward_compute_time=0, backward_compute_time=0, activation_size=5, parameter_size=0\n"
    "node4 -- Linear -- forward_compute_time=500, backward_compute_time=500, activation_size=1, parameter_size=0\n"
    "\tnode1 -- node2\n\tnode2 -- node3\n    node2 -- node4\n\tnode3 -- node5\n\tnode3 -- node4";

/// A graph as tables; nodes are named by their numbers.
struct Graph {
  int num_nodes = 0;
  std::vector<unsigned> before, after;  // Bits.
  std::vector<double> milliseconds, output, parameters;
};

Graph random_graph(int num_nodes, uint64_t seed) {
  Graph graph{.num_nodes = num_nodes,
              .before = std::vector<unsigned>(num_nodes),
              .after = std::vector<unsigned>(num_nodes),
              .milliseconds = {},
              .output = {},
              .parameters = {}};
  for (int to = 0; to < num_nodes; ++to) {
    for (int from = 0; from < to; ++from)
      if (random_bits(seed, from, to) % 5 < 2) {
        graph.before[to] |= 1u << from;
        graph.after[from] |= 1u << to;
      }
    graph.milliseconds.push_back(static_cast<double>(random_bits(seed, 100, to) % 20) * 1000);
    graph.output.push_back(static_cast<double>(random_bits(seed, 101, to) % 12));
    graph.parameters.push_back(static_cast<double>(random_bits(seed, 102, to) % 9));
  }
  return graph;
}

std::string file_of(const Graph& graph) {
  std::string text;
  for (int node = 0; node < graph.num_nodes; ++node)
    text += concat("n", node, " -- Layer -- forward_compute_time=", graph.milliseconds[node],
                   ", backward_compute_time=0, activation_size=", graph.output[node], ", parameter_size=", graph.parameters[node], "\n");
  for (int to = 0; to < graph.num_nodes; ++to)
    for (int from = 0; from < to; ++from)
      if (graph.before[to] >> from & 1) text += concat("\tn", from, " -- n", to, "\n");
  return text;
}

/// All plans.
struct Oracle {
  const Graph& graph;
  std::vector<int> machines;
  std::vector<double> bandwidth;
  unsigned all = (1u << graph.num_nodes) - 1;

  double sum(const std::vector<double>& values, unsigned set) const {
    double total = 0;
    for (int node = 0; node < graph.num_nodes; ++node)
      if (set >> node & 1) total += values[node];
    return total;
  }
  unsigned ancestors(int node) const {
    unsigned set = graph.before[node];
    for (int other = node - 1; other >= 0; --other)
      if (set >> other & 1) set |= graph.before[other];
    return set;
  }
  double crossing(unsigned done) const {
    unsigned counted = 0;
    for (int node = 0; node < graph.num_nodes; ++node) {
      if (!(done >> node & 1) || (graph.after[node] & done)) continue;
      const unsigned mine = ancestors(node);
      counted |= 1u << node;
      for (int other = 0; other < node; ++other)
        if ((mine >> other & 1) && (graph.after[other] & ~(mine | 1u << node))) counted |= 1u << other;
    }
    return sum(graph.output, counted);
  }
  bool closed(unsigned set) const {
    for (int node = 0; node < graph.num_nodes; ++node)
      if ((set >> node & 1) && (graph.before[node] & ~set)) return false;
    return true;
  }
  /// The best chain from `begin` to `end` on `left` machines of a level; `first`: its next stage is the chain's first.
  double best(int level, unsigned begin, unsigned end, int left, bool first) const {
    if (begin == end) return 0;
    double least = kInfinity;
    for (unsigned next = 1; next <= end; ++next) {
      if (next == begin || (begin & ~next) || (next & ~end) || !closed(next)) continue;
      for (int replicas = 1; replicas <= left; ++replicas)
        least = std::min(least, std::max(stage(level, begin, next, replicas, first), best(level, next, end, left - replicas, false)));
    }
    return least;
  }
  double stage(int level, unsigned begin, unsigned end, int replicas, bool first) const {
    double busy = level ? best(0, begin, end, machines[0], true) : sum(graph.milliseconds, end & ~begin) / 1000;
    double exchange = 4 * (replicas - 1) * sum(graph.parameters, end & ~begin) / (bandwidth[level] * replicas);
    if (level && first) exchange /= machines[0];
    double time = (busy + exchange) / replicas;
    if (first) return time;
    time = std::max(time, 2 * crossing(begin) / (bandwidth[level] * replicas));
    return end == all ? time : std::max(time, 2 * crossing(end) / (bandwidth[level] * replicas));
  }
  double best() const { return best(static_cast<int>(machines.size()) - 1, 0, all, machines.back(), true); }
};

class Files {
 public:
  InstanceAnswer solve(const std::string& text, const InstanceOptions& options = {}) const {
    std::ofstream(folder_ / "graph.txt", std::ios::binary | std::ios::trunc) << text;
    return solve_pipedream(folder_ / "graph.txt", options);
  }
  std::string refusal(const std::string& text, const InstanceOptions& options = {}) const {
    try {
      solve(text, options);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kBadInput);
      return error.what();
    }
    return "none";
  }

 private:
  TemporaryFolder folder_;
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

InstanceOptions machines(std::vector<int> machines, std::vector<double> speeds) {
  InstanceOptions options;
  options.machines = std::move(machines);
  options.bytes_per_second = std::move(speeds);
  return options;
}

TEST_CASE("pipedream: a file by hand, with inputs, tuples, lists and blanks") {
  const Files files;
  const InstanceAnswer one = files.solve(kFile, machines({1}, {400}));
  CHECK(one.objective == 6);
  CHECK(one.optimal);
  CHECK(one.bound_by == "area");
  const InstanceAnswer two = files.solve(kFile, machines({2}, {400}));
  CHECK(two.objective == 3);  // 3 s on each; the cut of 8 bytes takes 0.04 s.
  CHECK(two.lower_bound <= two.objective);
}

TEST_CASE("pipedream: one level, as all plans say") {
  const Files files;
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    const Graph graph = random_graph(1 + seed % 6, seed);
    const int num_machines = 1 + seed % 4;
    const double speed = 1 + random_bits(seed, 7) % 30;
    const InstanceAnswer answer = files.solve(file_of(graph), machines({num_machines}, {speed}));
    const double best = Oracle{.graph = graph, .machines = {num_machines}, .bandwidth = {speed}}.best();
    REQUIRE(answer.optimal);
    CHECK(answer.objective == doctest::Approx(best).epsilon(1e-8));
    CHECK(answer.lower_bound <= answer.objective);
  }
}

TEST_CASE("pipedream: two levels, as all plans say") {
  const Files files;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const Graph graph = random_graph(1 + seed % 5, seed);
    const std::vector<int> count{1 + static_cast<int>(seed % 3), 1 + static_cast<int>(seed / 3 % 3)};
    const std::vector<double> speeds{1.0 + random_bits(seed, 7) % 30, 1.0 + random_bits(seed, 8) % 10};
    const InstanceAnswer answer = files.solve(file_of(graph), machines(count, speeds));
    REQUIRE(answer.optimal);
    CHECK(answer.objective == doctest::Approx(Oracle{.graph = graph, .machines = count, .bandwidth = speeds}.best()).epsilon(1e-8));
  }
}

TEST_CASE("pipedream: more machines and faster links are never worse") {
  const Files files;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const std::string text = file_of(random_graph(20, seed));
    double last = kInfinity;
    for (const auto& [count, speed] : {std::pair(2, 2.0), {4, 2.0}, {4, 20.0}, {16, 20.0}, {1000, 20.0}, {1000, 1e9}}) {
      const double objective = files.solve(text, machines({count}, {speed})).objective;
      CHECK(objective <= last * (1 + 1e-8));
      last = objective;
    }
  }
}

TEST_CASE("pipedream: too many downsets, and no time") {
  const Files files;
  Graph wide = random_graph(1, 3);
  std::string text;
  for (int i = 0; i < 60; ++i)
    text += concat("n", i, " -- L -- forward_compute_time=", 1 + i % 7, ", backward_compute_time=0, activation_size=5, parameter_size=9\n");
  const InstanceAnswer answer = files.solve(text, machines({4}, {1e9}));
  CHECK(answer.lower_bound <= answer.objective);
  CHECK(answer.objective <= answer.lower_bound * 1.1);
  InstanceOptions options = machines({4}, {1e9});
  options.search_seconds = 0;
  CHECK(files.solve(text, options).plan["stages"].size() == 1);
  options.machines = {2, 2};
  options.bytes_per_second = {1e9, 1e8};
  CHECK(files.solve(text, options).objective > 0);
}

TEST_CASE("pipedream: refusals name line, expected and found") {
  const Files files;
  const std::string node = "a -- L -- forward_compute_time=1, backward_compute_time=1, activation_size=1, parameter_size=1\n";
  const auto with = [&](const std::string& from, const std::string& to) {
    return std::string(node).replace(node.find(from), from.size(), to);
  };
  CHECK(has(files.refusal(with("size=1,", "size=-1,")), "line 1: expected activation_size as a number from 0 to 1e30, found \"-1\""));
  CHECK(has(files.refusal(with("size=1,", "size=nan,")), "found \"nan\""));
  CHECK(has(files.refusal(with("size=1,", "size=1e400,")), "found \"1e400\""));
  CHECK(has(files.refusal(with("size=1,", "size=[1; 2,")), "']'"));
  CHECK(has(files.refusal(with(", parameter_size=1", "")), "a field parameter_size"));
  CHECK(has(files.refusal(with("parameter_size=1", "activation_size=1")), "activation_size once"));
  CHECK(has(files.refusal(node + "\ta -- b\n"), "line 2: expected the name of a node that stands further up, found \"b\""));
  CHECK(has(files.refusal(node + node), "line 2: expected a name that occurs once"));
  CHECK(has(files.refusal(node + "\ta -- a\n"), "cycles"));
  CHECK(has(files.refusal(""), "at least one layer"));
  CHECK(has(files.refusal(node, machines({0}, {1e9})), "machines"));
  CHECK(has(files.refusal(node, machines({4}, {0})), "bandwidth"));
  CHECK(has(files.refusal(node, machines({4, 4}, {1e9})), "one bandwidth for each"));
  CHECK(has(files.refusal(node, machines({4, 4, 4}, {1, 1, 1})), "one or two levels"));
}

TEST_CASE("mutation: pipedream") {
  const Files files;
  const std::string whole = kFile;
  int read = 0, refused = 0;
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    const std::string what = files.refusal(mutated(whole, seed), machines({3}, {4}));
    REQUIRE_MESSAGE(what.find('\n') == std::string::npos, what);
    ++(what == "none" ? read : refused);
  }
  for (size_t size = 0; size < whole.size(); size += 3) files.refusal(whole.substr(0, size));
  CHECK(read > 50);
  CHECK(refused > 500);
}

}  // namespace
}  // namespace cohort
