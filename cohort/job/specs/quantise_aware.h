#pragma once
// To how many bits a training rounds what it computes with. Torch-free.

#include <cstdint>
#include <optional>
#include <string>

namespace cohort {

struct QuantiseAware {
  int bits = 8;       ///< Of a weight: 8, for int8 kernels, which round their inputs too; 4: weights alone.
  int64_t group = 0;  ///< Weights of a row that share a scale; 0: all of them.
};

/// "8", "4" (in groups of 64) or "4:GROUP"; "" and "none": nothing. Error(kBadInput), which names --quantize-aware, for anything else.
std::optional<QuantiseAware> parse_quantise_aware(const std::string& text);

}  // namespace cohort
