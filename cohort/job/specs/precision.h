#pragma once
// In which arithmetic forward and backward run. Torch-free; train/model/precision.h does it.

#include <string>

namespace cohort {

enum class Precision { kFp32, kBf16, kFp16 };

/// Of "fp32", "bf16", "fp16". Error(kBadInput) otherwise.
Precision parse_precision(const std::string& name);
const char* name_of(Precision precision);
/// fp16's gradients need a loss scale (loss_scaler.h): numbers below 6e-8 become 0. bf16 has the range of fp32.
inline bool needs_loss_scale(Precision precision) { return precision == Precision::kFp16; }

}  // namespace cohort
