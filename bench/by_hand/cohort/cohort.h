#pragma once
// What people write without Cohort, under the name of Parallel: after backward() the mean of each gradient, one all-reduce after another.
// The ports of examples/ are compiled with this in front of Cohort's own header, so that the same programs can be measured beside
// themselves: bench/ports.py. With PORTS_EXCHANGE=none in the environment no gradient is exchanged: what two ranks take for their halves of
// the batch alone. Batch norm has each rank's own statistics, whatever a port asks for, and a checkpoint is not written.
#include "../../../cohort/cohort.h"

#include <cstdlib>

namespace by_hand {

class Parallel {
 public:
  Parallel(torch::nn::Module& module, cohort::Session& session, const cohort::ParallelOptions& = {}) : module_(module), session_(session) {
    for (torch::Tensor& parameter : module.parameters()) session.group().broadcast(parameter.detach(), 0, "a weight");
  }
  std::shared_ptr<void> accumulate() { return nullptr; }  // Nothing is exchanged in backward().
  void adopt_model() {}
  cohort::StepOutcome step(torch::optim::Optimizer& optimizer, const cohort::StepSettings& settings = {}) {
    for (torch::Tensor& parameter : module_.parameters()) {
      if (session_.size() == 1 || !exchanges_ || !parameter.grad().defined()) continue;
      parameter.mutable_grad().mul_(session_.weight() / session_.size());
      session_.group().all_reduce(parameter.grad(), cohort::Reduction::kSum, "a gradient");
    }
    if (settings.clip_norm > 0) torch::nn::utils::clip_grad_norm_(module_.parameters(), settings.clip_norm);
    optimizer.step();
    optimizer.zero_grad();
    return {};
  }
  std::string save(const std::string&, int64_t, torch::optim::Optimizer* = nullptr) { return ""; }
  int64_t load(const std::string&, torch::optim::Optimizer* = nullptr) { return -1; }

 private:
  torch::nn::Module& module_;
  cohort::Session session_;
  const bool exchanges_ = std::getenv("PORTS_EXCHANGE") == nullptr;
};

}  // namespace by_hand

namespace cohort {
using ByHand = ::by_hand::Parallel;
}
#define Parallel ByHand
