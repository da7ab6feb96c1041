#pragma once
// What a rank exchanges over the data axis in a step, and what of it computing does not hide. Torch-free. Internal to this room.

#include <cstdint>
#include <string>

#include "cohort/plan/profile/cluster.h"
#include "cohort/plan/profile/model_profile.h"

namespace cohort {

struct DataExchange {
  int num_ranks = 1;
  bool leaves_host = false;
  int zero = 0;
  std::string compress = "none";
  const CodingCost* coding = nullptr;  ///< Where it was measured.
  bool one_copy = false;
  bool overlaps = false;       ///< Buckets leave during the last backward: one stage, whole model.
  bool hides = true;           ///< Computing goes on meanwhile: false where it is the same cores that move the bytes.
  int num_backwards = 1;       ///< Micro-steps of a step that end in an exchange under ZeRO 2 and 3.
  int num_forwards = 1;        ///< Forwards, and as many backwards, for which ZeRO 3 gathers weights.
  int64_t gradient_bytes = 0;  ///< Of the rank's trained weights.
  int64_t weight_bytes = 0;    ///< Gathered by ZeRO 3.
  int64_t bucket_bytes = 0;
  int optimizer_arrays = 0;
  double forward_seconds = 0;   ///< Of one micro-batch,
  double backward_seconds = 0;  ///< likewise.
  double memory_bytes_per_second = 0;
};

struct ExchangeForecast {
  double exchange_seconds = 0, exposed_seconds = 0, update_seconds = 0;
};

/// Formulas: exchange_forecast.cpp.
ExchangeForecast forecast_exchange(const Cluster& cluster, const DataExchange& asked);

}  // namespace cohort
