#pragma once
// sync=async and sync=stale: one model, to which each push is applied when it comes, and how gradients travel to it in fewer bytes.

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

// How gradients travel from a worker to the server of the model in fewer bytes. gradient_server.cpp has the algorithm.

/// Of the trained parameters of one model. A worker's residual is what its codes have left out so far, a float for each element that is
/// coded: its own, and nobody else's. Any thread.
class PushCode {
 public:
  /// `compress`: fp16, bf16 or int8.
  PushCode(const std::string& compress, const std::vector<NamedTensor>& trained);
  /// Null for none.
  static std::unique_ptr<const PushCode> of(const std::string& compress, const std::vector<NamedTensor>& trained);

  /// The residual of a worker that has pushed nothing: zeros.
  at::Tensor fresh() const;
  int64_t residual_bytes() const { return num_coded_ * static_cast<int64_t>(sizeof(float)); }

  /// As gradients travel, one a parameter: bytes for those of type Float, others as they are.
  std::vector<at::Tensor> empty() const;
  int64_t num_bytes() const;
  /// Those that are not defined stay so, and their residual what it is.
  std::vector<at::Tensor> encode(const std::vector<at::Tensor>& gradients, const at::Tensor& residual) const;
  /// Into memory of its own: what was decoded before is gone then.
  std::vector<at::Tensor> decode(const std::vector<at::Tensor>& codes, std::vector<at::Tensor>& memory) const;

 private:
  struct Part {
    at::Tensor like;             // An alias of the parameter, for its sizes and type.
    int64_t residual_from = -1;  // -1: it is not coded.
    int64_t code_bytes = 0;
  };
  std::unique_ptr<Codec> codec_;
  std::vector<Part> parts_;
  int64_t num_coded_ = 0;
};

struct GradientServerOptions {
  UpdateRule rule;
  double rate_factor = 1;         ///< Of the learning rate of each push.
  int64_t global_batch = 1;       ///< Samples of a step, in which lateness is counted.
  std::string compress = "none";  ///< Of pushes: gradient_server.h.
};

/// One thread. The weights of `module` are the model: whole between any two calls.
class GradientServer : public AsyncMode {
 public:
  GradientServer(const torch::nn::Module& module, const GradientServerOptions& options);

  void pull(Work& work) override;
  void worked(Work& work, TicketResult result, const StepNumbers& numbers) override;
  PushOutcome push(Work& work, const StepNumbers& numbers) override;
  std::vector<at::Tensor> served() const override { return model_.tensors(); }
  void show() override {}

  int64_t version() const override { return version_; }
  int64_t pull_bytes() const override { return model_.num_bytes; }
  int64_t push_bytes() const override;
  int64_t bytes_in_flight() const override;

  std::vector<FlatPiece> saved_pieces() override;
  Json state() const override;
  std::vector<FlatPiece> loaded_pieces(const Json& state, const std::string& where) override;
  void loaded(const Json& state) override;
  std::vector<at::Tensor> empty_handed_over() const override;
  size_t num_optional() const override { return model_.trained.size(); }
  void forget(int worker) override { residuals_.erase(worker); }

 private:
  void merge_buffers(const Work& work, const std::vector<at::Tensor>& pushed);

  GradientServerOptions options_;
  ServedModel model_;
  std::unique_ptr<const PushCode> code_;  // Null for none.
  std::vector<at::Tensor> decoded_;       // Of the last push.
  std::map<int, at::Tensor> residuals_;   // Of workers whose half worked() does.
  PushOptimizer optimizer_;
  int64_t version_ = 0, samples_ = 0;  // Applied.

  // Statistics of pushes that were computed from one version are averaged, not applied one on the other.
  std::vector<at::Tensor> group_start_;
  int64_t group_version_ = -1;
  double group_weight_ = 0;
};

/// Of a worker that hands over gradients, and buffers as forward left them. `module` must outlive it.
class GradientWorker : public WorkerSide {
 public:
  GradientWorker(const torch::nn::Module& module, const std::string& compress);
  const std::vector<at::Tensor>& pulled() const override { return pulled_; }
  std::vector<at::Tensor> empty_handed_over() const override;
  HandedOver hand_over(const Ticket& ticket, TicketResult result, const StepNumbers& numbers) override;
  void begin_anew() override;

 private:
  ServedModel model_;
  std::vector<at::Tensor> pulled_;
  std::unique_ptr<const PushCode> code_;
  at::Tensor residual_;
};

}  // namespace cohort
