#include "cohort/comm/nccl.h"

#include "cohort/base/error.h"

// The one place that decides: LibTorch's CMake says USE_C10D_NCCL where its c10d has NCCL, and its header needs those of NCCL and CUDA.
#if defined(USE_C10D_NCCL) && __has_include(<nccl.h>) && __has_include(<cuda_runtime_api.h>)
#define COHORT_HAS_NCCL 1
#include <ATen/cuda/CUDAContext.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <chrono>
#else
#define COHORT_HAS_NCCL 0
#endif

namespace cohort {
namespace {

constexpr char kInstead[] = "; use --backend gloo, over which two ranks may also share one GPU";

}  // namespace

#if COHORT_HAS_NCCL

std::string why_no_nccl() { return at::cuda::is_available() ? "" : concat("NCCL needs a GPU, and this process sees none", kInstead); }

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, double timeout_seconds) {
  if (const std::string why = why_no_nccl(); !why.empty()) fail(ErrorCode::kEnvironment, why);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1e3));
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(std::move(store), rank, size, std::move(options));
}

#else

std::string why_no_nccl() {
  return concat("this build has no NCCL: it was made against a LibTorch without it, or without the headers of NCCL and CUDA", kInstead);
}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(c10::intrusive_ptr<c10d::Store>, int, int, double) {
  fail(ErrorCode::kEnvironment, why_no_nccl());
}

#endif

}  // namespace cohort
