#pragma once
// Random augmentation of training pictures: a pure function of (seed, step, index), so the same for every layout and after every resume.
//
//   crop   moves the picture by up to an eighth of its side in each direction (4 pixels of 32, He et al. 2015, section 4.2); edges are
//   filled
//          by reflection instead of black, so no new values appear
//   flip   mirrors every second picture on average
//
// Cost: one pass over the batch, on the loader's thread.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cohort/data/source/source.h"

namespace cohort {

class Augmentation {
 public:
  Augmentation() = default;  ///< None.
  /// `text`: crop, flip, both joined by ',', or none. Error(kBadInput) otherwise, and for data other than pictures.
  Augmentation(const std::string& text, const DataShape& shape, uint64_t seed);

  bool is_on() const { return crops_ || flips_; }
  /// Changes batch.values, the samples `indices`.
  void apply(Batch& batch, std::span<const int64_t> indices, int64_t step) const;

 private:
  void move(float* sample, std::vector<float>& plane, uint64_t bits) const;

  bool crops_ = false, flips_ = false;
  uint64_t seed_ = 0;
  int64_t channels_ = 0, height_ = 0, width_ = 0;
};

}  // namespace cohort
