#pragma once
// An instance of Piper: a graph of layers, each with variants by tensor-parallel degree and recompute.

#include <string>
#include <vector>

#include "cohort/plan/search/downsets.h"

namespace cohort {

struct PiperVariant {
  std::string id;  ///< "vanilla" or "activation recomp".
  double seconds = 0, parameter_bytes = 0;
  double bytes_per_micro_batch = 0, fixed_bytes = 0;  ///< Of memory: memoryUsageA and memoryUsageB.
  std::vector<double> sync_in_bytes, sync_out_bytes;  ///< One an edge of dag.before[node] and dag.after[node].
};

struct PiperNode {
  int64_t id = 0;
  std::vector<std::vector<PiperVariant>> variants;  ///< For each of PiperInstance::degrees, none to two.
  std::vector<double> in_bytes, out_bytes;          ///< Of the edges of dag.before[node] and dag.after[node].
};

struct PiperInstance {
  Dag dag;
  std::vector<PiperNode> nodes;  ///< By the numbers of `dag`.
  std::vector<int> degrees;      ///< Ascending; the first is 1.
  int devices = 0, batch = 0;
  double memory_bytes = 0, bytes_per_second = 0;
};

/// Error(kBadInput) names file, place, what was expected and what was found.
PiperInstance read_piper_instance(const std::string& path);

}  // namespace cohort
