#pragma once
// How gradients travel from a worker to the server of the model in fewer bytes. push_code.cpp has the algorithm.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/parallel/compress/compressor.h"

namespace cohort {

struct NamedTensor;

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

}  // namespace cohort
