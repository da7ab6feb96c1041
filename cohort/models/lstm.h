#pragma once
// What LSTM layers need to know of the processor.

#include <c10/core/ScalarType.h>

namespace cohort {

/// Whether LibTorch can run an LSTM in `type` on this CPU under autocast: never in fp16; in bf16 where oneDNN has a kernel (AVX-512), which
/// the first call tries. Where it can not, the `lstm` model computes that layer in fp32. Any thread.
bool cpu_has_lstm_in(at::ScalarType type);

}  // namespace cohort
