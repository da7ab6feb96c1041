#pragma once
// The compressors by name, for the table in compressor.cpp. What each does: the head comment of its file.

#include <memory>
#include <vector>

#include "cohort/parallel/compress/compressor.h"

namespace cohort {

std::unique_ptr<Compressor> make_fp16(int64_t num_elements);
std::unique_ptr<Compressor> make_bf16(int64_t num_elements);
std::unique_ptr<Compressor> make_int8(int64_t num_elements);
/// 0 < fraction <= 1.
std::unique_ptr<Compressor> make_top_k(int64_t num_elements, double fraction);
/// rank >= 1. Parts do not overlap and lie in the buffer; what they do not cover is exchanged as it is.
std::unique_ptr<Compressor> make_power_sgd(const CompressedBuffer& buffer, int64_t num_elements, int64_t rank, uint64_t seed);

}  // namespace cohort
