#pragma once
// The built-in models by their shapes: each reads the options that its factory in models/ reads, and names its layers as that does
// (models/analytic_match_test.cpp compares them). Torch-free. Internal to this room.

#include <string>
#include <vector>

#include "cohort/data/model/model_options.h"
#include "cohort/plan/analytic/shape_graph.h"

namespace cohort {

struct AnalyticFamily {
  const char* name;
  bool is_text;
  ShapeGraph (*build)(const ModelOptions& options);
};
const std::vector<AnalyticFamily>& analytic_families();

}  // namespace cohort
