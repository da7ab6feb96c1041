#pragma once
// `compress`: the names of compressions of gradients and what may stand behind their colon. What each does: parallel/compress/. Torch-free.

#include <string>

namespace cohort {

struct Compression {
  std::string name;     ///< none, fp16, bf16, int8, topk, powersgd.
  double argument = 0;  ///< The number after the colon, of those that take one.
};

/// Error(kBadInput) that says what is allowed.
Compression parse_compression(const std::string& spec);

}  // namespace cohort
