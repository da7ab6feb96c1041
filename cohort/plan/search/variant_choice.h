#pragma once
// Which layers of a stage take their slower but smaller variant, so that the stage fits into memory and stays within a time.

#include <vector>

namespace cohort {

/// A layer's one or two variants as the stage has them.
struct LayerVariants {
  double seconds[2] = {}, bytes[2] = {};
  int count = 1;
};

struct VariantChoice {
  enum class LoadVerdict { kFits, kNone, kNotKnown } verdict = LoadVerdict::kNone;
  std::vector<int> variant;  ///< Of each layer; only where it fits.
};

/// Some choice with all bytes <= memory_bytes and all seconds <= limit_seconds; kNotKnown when the search became too long.
VariantChoice choose_variants(const std::vector<LayerVariants>& layers, double memory_bytes, double limit_seconds);

}  // namespace cohort
