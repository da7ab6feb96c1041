#pragma once
// Which modules of a model are known to compute something else when a batch is divided: where verify says that a layout is another training
// it names them.

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

/// What suspects_of() wants to know of a model. Text, for the model lives in another process.
Json describe_modules(const LayerGraph& model);

struct SuspectOptions {
  bool batch_is_divided = false;  ///< Over replicas or into micro-batches.
  bool sync_batch_norm = false;
  bool draws = false;                                    ///< Whether forward() was seen to take numbers from LibTorch's generator.
  std::function<bool(const std::string& buffer)> moved;  ///< Whether training has changed "model.norm.running_mean".
};
std::vector<Suspect> suspects_of(const Json& modules, const SuspectOptions& options);

}  // namespace cohort
