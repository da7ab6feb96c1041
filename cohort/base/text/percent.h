#pragma once
// A share as text: "4.2 %", "33 %".

#include <cmath>
#include <string>

#include "cohort/base/fail.h"

namespace cohort {

/// A decimal place below ten; negative shares keep their sign.
inline std::string percent(double share) {
  const double value = 100 * share;
  return concat(std::abs(value) < 9.95 ? std::round(value * 10) / 10 : std::round(value), " %");
}

}  // namespace cohort
