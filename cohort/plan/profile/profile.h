#pragma once
// What each layer of a model costs on this machine for one micro-batch: what cuts and forecasts are made from. Torch-free; measured by
// train/model/profile_layers.h, or written by hand.

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/base/text/json_fwd.h"

namespace cohort {

template <typename T>
void sort_unique(std::vector<T>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

/// Whether a layer's output is in its stash, and which backward needs it.
enum class OutputKept : uint8_t {
  kNo,
  kByItself,   ///< Only the layer's own backward needs it (ReLU before a sum).
  kByReaders,  ///< The backward of a layer that reads it needs it.
};

struct LayerProfile {
  std::string name, kind;
  double forward_seconds = 0;
  double backward_input_seconds = 0;   ///< Seconds for the gradient of the input.
  double backward_weight_seconds = 0;  ///< Seconds for the gradients of the weights.
  int64_t weight_bytes = 0;
  int64_t stash_bytes = 0;   ///< Tensors that its forward made and a backward needs; inputs belong to the layers that made them.
  int64_t output_bytes = 0;  ///< Size of its output.
  OutputKept output_kept = OutputKept::kNo;
  int64_t working_bytes = 0;  ///< Peak of temporaries besides all stashes: gradients in flight, scratch.

  double seconds() const { return forward_seconds + backward_input_seconds + backward_weight_seconds; }
  /// What recomputing the layer frees: its stash, but for an output that a reader keeps.
  int64_t freed_bytes() const { return stash_bytes - (output_kept == OutputKept::kByReaders ? std::min(stash_bytes, output_bytes) : 0); }
  /// Whether its output is in a stash that stays when the layer is recomputed, or is not.
  bool keeps_output(bool is_recomputed) const {
    return output_kept == OutputKept::kByReaders || (output_kept == OutputKept::kByItself && !is_recomputed);
  }
};

struct Profile {
  std::string model;
  int64_t micro_batch = 0;  ///< Samples per measured micro-batch.
  std::vector<LayerProfile> layers;
  std::vector<std::pair<int, int>> edges;  ///< (from, to), layer indices; -1 the model's input.
  std::vector<std::pair<int, int>> tied;   ///< (owner, user): layers that share a weight, which lives in the first.
  double link_latency_seconds = 0;         ///< Latency of one transfer between ranks.
  double link_bytes_per_second = 0;        ///< Bandwidth of a transfer; 0: unlimited.

  double seconds() const {
    double sum = 0;
    for (const LayerProfile& layer : layers) sum += layer.seconds();
    return sum;
  }
  /// Seconds to transfer `bytes` between ranks.
  double transfer_seconds(int64_t bytes) const {
    return link_latency_seconds + (link_bytes_per_second > 0 ? static_cast<double>(bytes) / link_bytes_per_second : 0);
  }
};

/// The last layer that reads the output of each layer; -1 where none does.
std::vector<int> last_readers(const std::vector<std::pair<int, int>>& edges, size_t num_layers);

/// Error(kBadInput) unless there is a layer, edges go from earlier to later layers (or from -1) and all numbers are finite and not
/// negative.
void check_profile(const Profile& profile);

COHORT_PROGRAM_API Json to_json(const Profile& profile);
/// Error(kBadInput) that says what is missing or wrong; unknown keys are refused. "output_kept" ("no") and "tied" (none) may be left out.
COHORT_PROGRAM_API Profile profile_from_json(const Json& json, const std::string& where = "profile");

}  // namespace cohort
