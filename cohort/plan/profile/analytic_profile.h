#pragma once
// The profile of a model from its shapes and a cluster's data; no tensor is allocated. Torch-free.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/plan/profile/cluster.h"
#include "cohort/plan/profile/model_profile.h"

namespace cohort {

struct AnalyticOptions {
  std::vector<int64_t> micro_batches;  ///< Sizes of points; empty: 1, 2, 4, ... 256.
  std::string data;                    ///< A value of --data, used for its shape only. "": fashion-mnist, or text for text models.
  int64_t image_size = 0;              ///< A value of --image-size for picture files; 0: unchanged.
  int64_t context = 0;                 ///< Context of text, unless the model has context=N; 0: 64.
};

/// `model` as --model has it: any built-in family. Models of text take two options more than their factory: context=N and vocabulary=N, for
/// those that read no bytes. Points for every kind of device. Error(kBadInput) names unknown models and options.
ModelProfile analytic_profile(const std::string& model, const Cluster& cluster, const AnalyticOptions& options = {});
/// The names, for help.
std::vector<std::string> analytic_models();

// How much of its rate a device reaches in a matrix product.

/// The share for a result of `elements` elements with `columns` columns: products reach the full rate only where their result fills the
/// device, half of it at `half_rate_elements` elements and at `half_rate_width` columns. In (0, 1].
inline double share_of_rate(double elements, double columns, double half_rate_elements, double half_rate_width) {
  return elements / (elements + half_rate_elements) * columns / (columns + half_rate_width);
}

}  // namespace cohort
