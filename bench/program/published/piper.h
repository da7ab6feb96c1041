#pragma once
// An instance of Piper: a graph of layers, each with variants by tensor-parallel degree and recompute; and the parts of its search.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/program/published/replicated_stages.h"
#include "cohort/plan/cut/downsets.h"

namespace cohort {

struct PiperVariant {
  std::string id;  ///< "vanilla" or "activation recomp".
  double seconds = 0, parameter_bytes = 0;
  double bytes_per_micro_batch = 0, fixed_bytes = 0;  ///< Memory: memoryUsageA and memoryUsageB.
  std::vector<double> sync_in_bytes, sync_out_bytes;  ///< One for each edge of dag.before[node] and dag.after[node].
};

struct PiperNode {
  int64_t id = 0;
  std::vector<std::vector<PiperVariant>> variants;  ///< For each of PiperInstance::degrees, none to two.
  std::vector<double> in_bytes, out_bytes;          ///< For the edges of dag.before[node] and dag.after[node].
};

struct PiperInstance {
  Dag dag;
  std::vector<PiperNode> nodes;  ///< Indexed by the numbers of `dag`.
  std::vector<int> degrees;      ///< Ascending; the first is 1.
  int devices = 0, batch = 0;
  double memory_bytes = 0, bytes_per_second = 0;
};

/// Error(kBadInput) names file, place, what was expected and what was found.
PiperInstance read_piper_instance(const std::string& path);

/// A layer's one or two variants as the stage has them.
struct LayerVariants {
  double seconds[2] = {}, bytes[2] = {};
  int count = 1;
};

struct VariantChoice {
  enum class LoadVerdict { kFits, kNone, kNotKnown } verdict = LoadVerdict::kNone;
  std::vector<int> variant;  ///< The variant of each layer, if the stage fits.
};

/// Which layers of a stage take their slower but smaller variant: some choice with all bytes <= memory_bytes and all seconds <=
/// limit_seconds; kNotKnown when the search became too long.
VariantChoice choose_variants(const std::vector<LayerVariants>& layers, double memory_bytes, double limit_seconds);

struct PiperStage {
  size_t begin = 0, end = 0;     ///< Downsets before and after it.
  int replicas = 1, degree = 0;  ///< `degree`: index in PiperInstance::degrees.
  std::vector<int> variant;      ///< The variant of each node of the stage, in ascending order.
  double seconds = 0;
};

enum class PiperVerdict { kPlan, kNone, kNotKnown };

struct PiperLimitResult {
  PiperVerdict verdict = PiperVerdict::kNone;
  std::vector<PiperStage> stages;
};

/// Is there a plan of Piper's class in which every stage keeps a time and every device its memory? kNotKnown: out of time, or a choice of
/// variants was too long.
PiperLimitResult search_piper_limit(const PiperInstance& instance, const Downsets& sets, const std::vector<double>& area_seconds,
                                    double limit_seconds, SearchClock::time_point deadline);

}  // namespace cohort
