#pragma once
// How a smoothed target is divided over K classes. Torch-free.
//
//   all      1 - e for its class, and e spread evenly over all K, its own too (Szegedy et al. 2016, section 7; PyTorch): the default
//   others   1 - e for its class, and e / (K - 1) for each other one (Shallue et al. 2019; init2winit's use_shallue_label_smoothing)
//
// The second is the first with e K / (K - 1): both give every other class the same, and add up to 1. So one loss does for both.

#include <cstdint>
#include <string>

#include "cohort/base/fail.h"

namespace cohort {

/// The e of `all` that means the same as `smoothing` over `over`. Error(kBadInput) where that is above 1: the right class would get less
/// than none of the even part.
inline double label_smoothing_over_all(double smoothing, const std::string& over, int64_t num_classes) {
  if (over != "others" || smoothing == 0) return smoothing;
  const double most = num_classes > 1 ? static_cast<double>(num_classes - 1) / static_cast<double>(num_classes) : 0;
  if (smoothing > most)
    fail(ErrorCode::kBadInput, "label smoothing ", smoothing, " over the other classes gives the right one of ", num_classes,
         " less than each of these; the largest that makes sense is ", most);
  return smoothing / most;
}

}  // namespace cohort
