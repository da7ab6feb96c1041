#include "cohort/data/source.h"

namespace cohort {

int64_t DataShape::input_elements() const {
  int64_t product = 1;
  for (const int64_t size : input) product *= size;
  return product;
}

int64_t DataShape::targets_per_sample() const { return kind == Kind::kText ? input_elements() : 1; }

}  // namespace cohort
