// Activation checkpointing in your own training loop: the blocks of an ordinary torch::nn module are wrapped in cohort::recompute, so that
// each keeps only its input and recomputes the rest in backward. Prints the bytes that forward keeps for backward, with and without, and
// checks that the gradients are the same bits, dropout included.
//
// Test: recompute
#include <c10/core/Allocator.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "cohort/models/graph/recompute.h"

namespace {

constexpr int64_t kBatch = 512, kWidth = 64;
constexpr int kDepth = 12;

/// Bytes of tensors allocated since it was installed, as LibTorch's CPU allocator reports them to a profiler.
struct MemoryCounter : c10::MemoryReportingInfoBase {
  int64_t held_bytes = 0, peak_bytes = 0;

  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    held_bytes += bytes;  // Negative when memory is freed.
    peak_bytes = std::max(peak_bytes, held_bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }
};

struct NetImpl : torch::nn::Module {
  std::vector<torch::nn::Sequential> blocks;
  bool recomputed = false;

  NetImpl() {
    for (int i = 0; i < kDepth; ++i)
      blocks.push_back(
          register_module("block" + std::to_string(i),
                          torch::nn::Sequential(torch::nn::Linear(kWidth, 4 * kWidth), torch::nn::GELU(), torch::nn::Dropout(0.1),
                                                torch::nn::Linear(4 * kWidth, kWidth), torch::nn::Tanh())));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (torch::nn::Sequential& block : blocks) {
      if (recomputed) x = cohort::recompute([&block](const torch::Tensor& t) { return block->forward(t); }, x);
      else x = block->forward(x);
    }
    return x;
  }
};
TORCH_MODULE(Net);

struct Measured {
  int64_t kept_bytes = 0, peak_bytes = 0;
  std::vector<torch::Tensor> gradients;
};

Measured train_once(Net& net, bool recomputed) {
  net->zero_grad();
  net->recomputed = recomputed;
  torch::manual_seed(1);  // The same input and dropout both times.
  const torch::Tensor x = torch::randn({kBatch, kWidth});
  Measured measured;
  const auto counter = std::make_shared<MemoryCounter>();
  {
    const c10::DebugInfoGuard counted(c10::DebugInfoKind::PROFILER_STATE, counter);
    const torch::Tensor loss = net->forward(x).pow(2).mean();
    measured.kept_bytes = counter->held_bytes;
    loss.backward();
  }
  measured.peak_bytes = counter->peak_bytes;
  for (const torch::Tensor& parameter : net->parameters()) measured.gradients.push_back(parameter.grad().clone());
  return measured;
}

double mebibytes(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

int run() {
  torch::set_num_threads(1);
  Net net;
  const Measured plain = train_once(net, false), recomputed = train_once(net, true);
  std::printf("kept for backward: %.2f MiB; with recompute %.2f MiB\n", mebibytes(plain.kept_bytes), mebibytes(recomputed.kept_bytes));
  std::printf("peak of the step, gradients included: %.2f MiB; with recompute %.2f MiB\n", mebibytes(plain.peak_bytes),
              mebibytes(recomputed.peak_bytes));
  bool equal = true;
  for (size_t i = 0; i < plain.gradients.size(); ++i) equal = equal && torch::equal(plain.gradients[i], recomputed.gradients[i]);
  std::printf("gradients: %s\n", equal ? "the same bits" : "different");
  return equal && recomputed.kept_bytes < plain.kept_bytes / 4 ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "recompute: %s\n", error.what());
    return 1;
  }
}
