#pragma once
// Random changes of the pictures that a training reads, the same on every layout and after every resume: what happens to a picture is a
// pure function of (seed, step, its index in the data), whoever reads it. Torch-free.
//
//   crop   the picture is moved by up to an eighth of its side in each direction (4 pixels of 32, as He et al. 2015, section 4.2, do it);
//          what comes in at the edge is the picture's own reflection, where theirs is black: no value is made up that the data do not have
//   flip   left and right are exchanged, for one picture in two
//
// Cost: one pass over the batch, on the thread that reads it ahead of the training.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cohort/data/source/source.h"

namespace cohort {

class Augmentation {
 public:
  Augmentation() = default;  ///< None.
  /// `text`: words of crop and flip, joined by ','; "none": neither. Error(kBadInput) for anything else, and for data that are no pictures.
  Augmentation(const std::string& text, const DataShape& shape, uint64_t seed);

  bool is_on() const { return crops_ || flips_; }
  /// Changes batch.values, whose samples are `indices` of the data in that order.
  void apply(Batch& batch, std::span<const int64_t> indices, int64_t step) const;

 private:
  void move(float* sample, std::vector<float>& plane, uint64_t bits) const;

  bool crops_ = false, flips_ = false;
  uint64_t seed_ = 0;
  int64_t channels_ = 0, height_ = 0, width_ = 0;
};

}  // namespace cohort
