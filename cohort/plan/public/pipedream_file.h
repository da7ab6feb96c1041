#pragma once
// A profile of PipeDream's (graph.txt): a graph of layers with times and bytes of one mini-batch.

#include <string>
#include <vector>

#include "cohort/plan/search/downsets.h"

namespace cohort {

/// Without what PipeDream leaves out: inputs, and outputs of tuples that nobody reads. All vectors go by the numbers of `dag`.
struct PipedreamGraph {
  Dag dag;
  std::vector<std::string> names;
  std::vector<double> seconds;  ///< Forward and backward.
  std::vector<double> output_bytes, parameter_bytes;
};

/// Error(kBadInput) names file, line, what was expected and what was found.
PipedreamGraph read_pipedream_graph(const std::string& path);

}  // namespace cohort
