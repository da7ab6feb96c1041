#pragma once
// A rank's part of a parameter that is divided along one dimension (column- and row-parallel layers, heads, vocabulary). Torch-free.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/checkpoint/checkpoint.h"

namespace cohort {

/// Indices [local, local + count) along the divided dimension of the part are [whole, whole + count) of the whole parameter.
struct SliceRange {
  int64_t local = 0, whole = 0, count = 0;
  bool operator==(const SliceRange&) const = default;
};

struct COHORT_API ParameterShard {
  std::vector<int64_t> whole_shape;
  int dim = 0;
  std::vector<SliceRange> ranges;  ///< By `local`, without gaps; all parts together cover the whole exactly once.

  std::vector<int64_t> local_shape() const;
};

/// Part `index` of `num_parts` equal parts of dimension `dim`, which consists of `num_blocks` blocks that are divided separately (3 for the
/// q, k and v rows of an attention projection); `unit` consecutive indices stay together (a head's width). Error(kBadInput) naming `what`
/// where the dimension is not divisible.
COHORT_API ParameterShard even_shard(std::vector<int64_t> whole_shape, int dim, int num_parts, int index, const std::string& what,
                                     int num_blocks = 1, int64_t unit = 1);

/// Elements [begin, begin + count) of the part in row-major order, beginning at `data`, as pieces of the whole tensor `name`. `scratch`
/// holds copies of non-contiguous rows and must outlive the pieces.
COHORT_API std::vector<TensorPiece> pieces_of_shard(const std::string& name, DType dtype, const ParameterShard& shard, int64_t begin,
                                                    int64_t count, const void* data, std::vector<std::vector<char>>& scratch);
/// The reverse: fills elements [begin, begin + count) of the part from the checkpoint's tensor `name`.
COHORT_API void read_shard(const Checkpoint& checkpoint, const std::string& name, const ParameterShard& shard, int64_t begin, int64_t count,
                           void* data);

}  // namespace cohort
