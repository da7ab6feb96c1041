// Compressed pushes with error feedback.
//
// Definitions: g the gradient that a worker has for a ticket, as it hands it over (of the sum of the losses over the samples of the whole
//   step), e the worker's residual (zero at first), c() the code of a parameter: halves, or bytes in blocks of 256 with a scale each.
// Steps of a push:
//   1. the worker: x = g + e, parameter by parameter; it sends c(x) and keeps e = x - c(x).
//   2. the server takes c(x) for the gradient: clipping and the optimizer see nothing else.
// So after any pushes the sum of what was applied and of all residuals is the sum of the gradients of all tickets, whoever did them, but
// for the residuals of workers that were lost or came again by another connection (what they had sent last may have come or not): those
// begin at zero, and at most one push's rounding is lost.
//
// Cost of a push: 2 bytes an element (fp16, bf16) or 1.016 (int8) in place of 4, one pass to encode, one to decode; n floats of memory at
// the worker, n at the server. Buffers, and parameters of type Double, travel as they are, and so do
// versions to the worker: a code of them would be an error in what gradients are computed on, which nothing feeds back.
//
// Source: Karimireddy et al. 2019 ("Error Feedback Fixes SignSGD", algorithm 2), with one worker at a time in place of a sum over workers,
// as Zheng et al. 2019 ("Communication-Efficient Distributed Blockwise Momentum SGD with Error-Feedback") has it for a server. Difference:
// what goes back is not coded.
#include "cohort/async/push_code.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "cohort/parallel/common/parameters.h"

namespace cohort {
namespace {

std::byte* bytes_of(const at::Tensor& code) { return reinterpret_cast<std::byte*>(code.data_ptr<uint8_t>()); }

}  // namespace

PushCode::PushCode(const std::string& compress, const std::vector<NamedTensor>& trained) : codec_(make_codec(compress)) {
  for (const auto& [name, tensor] : trained) {
    Part part{.like = tensor.detach()};
    if (tensor.scalar_type() == at::kFloat) {
      part.residual_from = num_coded_;
      part.code_bytes = codec_->bytes(tensor.numel());
      num_coded_ += tensor.numel();
    }
    parts_.push_back(std::move(part));
  }
}

std::unique_ptr<const PushCode> PushCode::of(const std::string& compress, const std::vector<NamedTensor>& trained) {
  return compress == "none" ? nullptr : std::make_unique<const PushCode>(compress, trained);
}

at::Tensor PushCode::fresh() const { return at::zeros({num_coded_}, at::kFloat); }

std::vector<at::Tensor> PushCode::empty() const {
  std::vector<at::Tensor> out;
  for (const Part& part : parts_)
    out.push_back(part.residual_from < 0 ? at::empty_like(part.like) : at::empty({part.code_bytes}, at::kByte));
  return out;
}

int64_t PushCode::num_bytes() const {
  int64_t bytes = 0;
  for (const Part& part : parts_) bytes += part.residual_from < 0 ? static_cast<int64_t>(part.like.nbytes()) : part.code_bytes;
  return bytes;
}

std::vector<at::Tensor> PushCode::encode(const std::vector<at::Tensor>& gradients, const at::Tensor& residual) const {
  std::vector<at::Tensor> codes = empty();
  float* const left_out = residual.data_ptr<float>();
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!gradients[i].defined() || parts_[i].residual_from < 0) codes[i] = gradients[i];
    else codec_->encode(gradients[i].data_ptr<float>(), left_out + parts_[i].residual_from, gradients[i].numel(), 1, bytes_of(codes[i]));
  }
  return codes;
}

std::vector<at::Tensor> PushCode::decode(const std::vector<at::Tensor>& codes, std::vector<at::Tensor>& memory) const {
  if (memory.empty())
    for (const Part& part : parts_) memory.push_back(part.residual_from < 0 ? at::Tensor() : at::empty_like(part.like));
  std::vector<at::Tensor> gradients = codes;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!codes[i].defined() || parts_[i].residual_from < 0) continue;
    codec_->decode(bytes_of(codes[i]), memory[i].numel(), 1, false, memory[i].data_ptr<float>());
    gradients[i] = memory[i];
  }
  return gradients;
}

}  // namespace cohort
