#pragma once
// What each layer of a model costs on this machine for one micro-batch: what cuts and forecasts are made from. Torch-free; measured by
// train/profile_layers.h, or written by hand.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/json_fwd.h"

namespace cohort {

struct LayerProfile {
  std::string name, kind;
  double forward_seconds = 0;
  double backward_input_seconds = 0;   ///< Gradient of the input,
  double backward_weight_seconds = 0;  ///< and of the weights.
  int64_t weight_bytes = 0;
  int64_t stash_bytes = 0;   ///< What forward keeps for backward.
  int64_t output_bytes = 0;  ///< What it hands on.
};

struct Profile {
  std::string model;
  int64_t micro_batch = 0;  ///< Samples that were measured.
  std::vector<LayerProfile> layers;
  std::vector<std::pair<int, int>> edges;  ///< (from, to), layer indices; -1 the model's input.
  double link_latency_seconds = 0;         ///< Of one hand-over between ranks,
  double link_bytes_per_second = 0;        ///< and its rate; 0: unlimited.
};

Json to_json(const Profile& profile);
/// Error(kBadInput) that says what is missing or wrong.
Profile profile_from_json(const Json& json);

}  // namespace cohort
