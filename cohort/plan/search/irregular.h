#pragma once
// Plans out of the class that the bounds are for. Internal to this folder.

#include <functional>

#include "cohort/plan/search/cut_forecasts.h"

namespace cohort {

/// Forecasts some plans whose stages are no runs of layers, or whose stages have different numbers of replicas (irregular.cpp); those that
/// fit go to the evaluation's pool. Where keys of the layout are given that these would have to break, none.
void try_irregular(const SearchSpace& space, const std::string& precision, const StepsPoint& point, CutForecasts& evaluation,
                   const std::function<bool()>& is_over);

}  // namespace cohort
