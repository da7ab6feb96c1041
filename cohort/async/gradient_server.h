#pragma once
// sync=async and sync=stale: one model, to which each push is applied on arrival, and compression of the pushed gradients.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cohort/async/async_mode.h"
#include "cohort/async/push_optimizer.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/parallel/compress/compressor.h"

namespace cohort {

/// Encodes the gradients of one model's trained parameters for a push. Each worker keeps a residual: what its codes have left out so far,
/// one float per encoded element. Any thread.
class PushCodec {
 public:
  /// `compress`: fp16, bf16 or int8.
  PushCodec(const std::string& compress, const std::vector<NamedTensor>& trained);
  /// Null for "none".
  static std::unique_ptr<const PushCodec> of(const std::string& compress, const std::vector<NamedTensor>& trained);

  /// A zero residual.
  at::Tensor empty_residual() const;
  int64_t residual_bytes() const { return num_coded_ * static_cast<int64_t>(sizeof(float)); }

  /// Uninitialized codes, one per parameter: bytes for type Float, other types as they are.
  std::vector<at::Tensor> empty_codes() const;
  int64_t num_bytes() const;
  /// Undefined gradients stay undefined and leave their residual unchanged.
  std::vector<at::Tensor> encode(const std::vector<at::Tensor>& gradients, const at::Tensor& residual) const;
  /// Decodes into `memory`, which is allocated if empty and overwritten by the next call.
  std::vector<at::Tensor> decode(const std::vector<at::Tensor>& codes, std::vector<at::Tensor>& memory) const;

 private:
  struct Parameter {
    at::Tensor like;               // Alias of the parameter, for its sizes and type.
    int64_t residual_offset = -1;  // -1: sent unencoded.
    int64_t code_bytes = 0;
  };
  std::unique_ptr<Codec> codec_;
  std::vector<Parameter> parameters_;
  int64_t num_coded_ = 0;
};

struct GradientServerOptions {
  UpdateRule rule;
  double rate_factor = 1;         ///< Multiplies the learning rate of each push.
  int64_t global_batch = 1;       ///< Samples of a step, for lateness.
  std::string compress = "none";  ///< Compression of pushes.
};

/// One thread. The weights of `module` are the model itself: complete between any two calls.
class GradientServer : public AsyncMode {
 public:
  GradientServer(const torch::nn::Module& module, const GradientServerOptions& options);

  void pull(Assignment& assignment) override { version_.mark_pull(assignment); }
  void prepare_push(Assignment& assignment, WorkResult result, const StepNumbers& numbers) override;
  PushOutcome push(Assignment& assignment, const StepNumbers& numbers) override;
  std::vector<at::Tensor> served_tensors() const override { return model_.tensors(); }

  int64_t version() const override { return version_.version; }
  int64_t pull_bytes() const override { return model_.num_bytes; }
  int64_t push_bytes() const override;
  int64_t bytes_in_flight() const override;

  std::vector<FlatPiece> saved_pieces() override;
  Json state() const override;
  std::vector<FlatPiece> loaded_pieces(const Json& state, const std::string& where) override;
  void loaded(const Json& state) override;
  std::vector<at::Tensor> empty_push() const override;
  size_t num_optional() const override { return model_.trained.size(); }
  void forget(int worker) override { residuals_.erase(worker); }

 private:
  void merge_buffers(const Assignment& assignment, const std::vector<at::Tensor>& pushed);

  GradientServerOptions options_;
  ModelTensors model_;
  std::unique_ptr<const PushCodec> codec_;  // Null without compression.
  std::vector<at::Tensor> decoded_;         // Memory for the last push.
  std::map<int, at::Tensor> residuals_;     // Of workers whose half prepare_push() runs.
  PushOptimizer optimizer_;
  ModelVersion version_;

  // Buffers of pushes computed from one version are averaged, not applied one after the other.
  std::vector<at::Tensor> group_start_;
  int64_t group_version_ = -1;
  double group_weight_ = 0;
};

/// Pushes gradients, and buffers as forward left them. `module` must outlive it.
class GradientWorker : public AsyncWorker {
 public:
  GradientWorker(const torch::nn::Module& module, const std::string& compress);
  const std::vector<at::Tensor>& pull_buffers() const override { return pull_buffers_; }
  std::vector<at::Tensor> empty_push() const override;
  PushData make_push(const WorkItem& item, WorkResult result, const StepNumbers& numbers) override;
  void reset() override;

 private:
  ModelTensors model_;
  std::vector<at::Tensor> pull_buffers_;
  std::unique_ptr<const PushCodec> codec_;
  at::Tensor residual_;
};

}  // namespace cohort
