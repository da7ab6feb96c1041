#include "cohort/job/specs/precision.h"

#include "cohort/base/fail.h"

namespace cohort {

Precision parse_precision(const std::string& name) {
  for (const Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kFp16})
    if (name == name_of(precision)) return precision;
  fail(ErrorCode::kBadInput, "precision '", name, "' is not known; use fp32, bf16 or fp16");
}

const char* name_of(Precision precision) {
  switch (precision) {
    case Precision::kBf16:
      return "bf16";
    case Precision::kFp16:
      return "fp16";
    default:
      return "fp32";
  }
}

}  // namespace cohort
