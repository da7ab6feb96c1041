#include "cohort/parallel/common/buckets.h"

#include <cstddef>

#include <map>

namespace cohort {

std::vector<BucketPlan> plan_buckets(const std::vector<ParameterSize>& sizes, const std::vector<int>& order, int64_t first_bucket_bytes,
                                     int64_t bucket_bytes) {
  std::vector<BucketPlan> plans;
  std::map<int, BucketPlan> open;  // One bucket being filled per kind.
  for (const int parameter : order) {
    const ParameterSize& size = sizes[static_cast<size_t>(parameter)];
    const int64_t per_line = 64 / size.element_bytes;
    const int64_t place = (size.num_elements + per_line - 1) / per_line * per_line;
    const int64_t limit = plans.empty() ? first_bucket_bytes : bucket_bytes;
    BucketPlan& bucket = open[size.kind];
    if (!bucket.parameters.empty() && (bucket.num_elements + place) * size.element_bytes > limit) {
      plans.push_back(std::move(bucket));
      bucket = {};
    }
    bucket.parameters.push_back(parameter);
    bucket.offsets.push_back(bucket.num_elements);
    bucket.num_elements += place;
  }
  for (auto& [kind, bucket] : open)
    if (!bucket.parameters.empty()) plans.push_back(std::move(bucket));
  return plans;
}

}  // namespace cohort
