#pragma once
// Names modules that are known to compute something else when a batch is divided, for layouts that verify finds to be another training.

#include <functional>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"

namespace cohort {

class LayerGraph;

struct Suspect {
  std::string module;      ///< "model.norm"; "loss" for the model's own.
  std::string class_name;  ///< "torch::nn::BatchNorm1d"; empty for the loss.
  std::string why;         ///< What it does and what to use instead.
};

/// The input of suspects_of(); JSON, since the model lives in another process.
Json describe_modules(const LayerGraph& model);

struct SuspectOptions {
  bool batch_is_divided = false;  ///< Over replicas or into micro-batches.
  bool sync_batch_norm = false;
  bool draws = false;                                    ///< forward() was seen to draw from LibTorch's generator.
  std::function<bool(const std::string& buffer)> moved;  ///< True if training has changed a buffer ("norm.running_mean").
};
std::vector<Suspect> suspects_of(const Json& modules, const SuspectOptions& options);

}  // namespace cohort
