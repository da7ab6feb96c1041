#pragma once
// Checkpoints in memory, for the tests of ZeRO.

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "cohort/parallel/common/flat_piece.h"

namespace cohort::zero_test {

/// Whole tensors by name, and how often each element was written.
struct Saved {
  std::map<std::string, std::vector<double>> values;
  std::map<std::string, std::vector<int>> writes;

  void save(const std::vector<FlatPiece>& pieces) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const FlatPiece& piece : pieces) {
      int64_t count = 1;
      for (const int64_t size : piece.shape) count *= size;
      values[piece.name].resize(static_cast<size_t>(count));
      writes[piece.name].resize(static_cast<size_t>(count));
      const torch::Tensor here = piece.values.cpu().to(torch::kDouble);
      for (int64_t i = 0; i < here.numel(); ++i) {
        values[piece.name][static_cast<size_t>(piece.begin + i)] = here[i].item<double>();
        ++writes[piece.name][static_cast<size_t>(piece.begin + i)];
      }
    }
  }
  void load(const std::vector<FlatPiece>& pieces) const {
    for (const FlatPiece& piece : pieces)
      for (int64_t i = 0; i < piece.values.numel(); ++i)
        piece.values[i].fill_(values.at(piece.name).at(static_cast<size_t>(piece.begin + i)));
  }

 private:
  std::mutex mutex_;
};

}  // namespace cohort::zero_test
