// The instances of msr-fiddle/dnn-partitioning: where each node of a graph goes, accelerators of limited memory or CPU cores.
//
// Objective of throughput-inputs is the largest load (search/load_search.cpp): the time of a device's nodes, and the transfer of each
// output that it shares with another device. Objective of latency-inputs is the time of one sample (public/latency_search.cpp). Devices
// need not be contiguous. Source: Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020; we
// differ in that their exact program is for contiguous plans and their general one needs a commercial solver.

#include <numeric>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/plan/public/latency.h"
#include "cohort/plan/search/load_search.h"

namespace cohort {
namespace {

[[noreturn]] void fail_infeasible(const std::string& path, const PartitionGraph& graph, const LoadProblem& problem) {
  double sum = 0, largest = 0;
  for (const LoadProblem::Item& item : problem.items) sum += item.bytes, largest = std::max(largest, item.bytes);
  fail(ErrorCode::kInfeasible, path, ": no plan was found in which ", graph.num_accelerators, " accelerators of ", graph.memory_bytes,
       " bytes hold what no CPU core takes: all pieces need ", sum, " bytes, the largest ", largest,
       "; more devices, more memory (--memory) or a CPU core would do");
}

InstanceAnswer search_max_load(const std::string& path, const PartitionGraph& graph, const InstanceOptions& options) {
  const LoadProblem problem = load_problem_of(graph);
  std::vector<int> order(problem.items.size());
  std::iota(order.begin(), order.end(), 0);
  const auto found = search_loads(problem, order, {.search_seconds = options.search_seconds, .seed = options.search_seed});
  if (!found) fail_infeasible(path, graph, problem);
  return {.objective = found->largest_load,
          .lower_bound = found->bound.value,
          .bound_by = found->bound.by,
          .optimal = found->optimal,
          .plan = partition_plan_json(graph, found->placement)};
}

}  // namespace

InstanceAnswer solve_dnn_partitioning(const std::string& path, const InstanceOptions& options) {
  const double start = steady_seconds();
  const PartitionGraph graph = read_partition_graph(path, options);
  InstanceAnswer answer = graph.latency ? search_latency(path, graph, options) : search_max_load(path, graph, options);
  answer.search_seconds = steady_seconds() - start;
  return answer;
}

}  // namespace cohort
