#pragma once
// Which parameters' gradients travel together. Pure arithmetic, no tensors.

#include <cstdint>
#include <vector>

namespace cohort {

struct ParameterSize {
  int64_t num_elements = 0;
  int element_bytes = 4;
  int kind = 0;  ///< Parameters of different kind (dtype) never share a bucket.
};

struct BucketPlan {
  std::vector<int> parameters;   ///< Indices, in the order of their places in the bucket.
  std::vector<int64_t> offsets;  ///< In elements; places begin at multiples of 64 bytes.
  int64_t num_elements = 0;      ///< Of all places, padding included.
};

/// Groups parameters in the order `order` (that in which their gradients become ready): a bucket is closed when the next gradient would
/// lift it over `bucket_bytes`; the first is closed at `first_bucket_bytes`, so that the exchange starts early. A gradient larger than the
/// limit is alone.
std::vector<BucketPlan> plan_buckets(const std::vector<ParameterSize>& sizes, const std::vector<int>& order, int64_t first_bucket_bytes,
                                     int64_t bucket_bytes);

}  // namespace cohort
