#pragma once
// A cut into stages by what the schedule makes of it, where ranks have several stages. Torch-free.

#include <functional>
#include <vector>

namespace cohort {

/// Seconds of a step with this cut (first layers of the stages); infinite where it does not fit.
using StepSeconds = std::function<double(const std::vector<int>& first_layer)>;

/// The cut of `num_layers` layers into as many stages as each of `starts` has, with the least `seconds`: of all cuts where they are few,
/// else of those that a search from each start meets (improve_split.cpp). Ties go to the cut met first, the starts in their order before
/// all. Error(kBadInput) where starts are none or are no cuts of that number of layers.
std::vector<int> improve_split(int num_layers, const std::vector<std::vector<int>>& starts, const StepSeconds& seconds);

}  // namespace cohort
