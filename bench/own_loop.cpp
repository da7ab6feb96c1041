// What DataParallel costs a loop of one's own, beside an all-reduce after backward() written by hand over Gloo and beside one process
// alone, each in turn in one run. `masks` has twelve constant buffers of 1024 x 1024, as attention masks are.
//
//   bench_own_loop [--workers 2] [ROUNDS] [STEPS]        median and extremes of ROUNDS (5), each the mean of STEPS (200) steps
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "cohort/cohort.h"

namespace {

struct NetImpl : torch::nn::Module {
  torch::nn::Sequential layers;
  NetImpl(int64_t width, int depth, int num_masks) {
    for (int i = 0; i < depth; ++i) {
      layers->push_back(torch::nn::Linear(width, width));
      layers->push_back(torch::nn::ReLU());
    }
    register_module("layers", layers);
    for (int i = 0; i < num_masks; ++i) register_buffer("mask" + std::to_string(i), torch::triu(torch::full({1024, 1024}, -INFINITY), 1));
  }
  torch::Tensor forward(const torch::Tensor& x) { return layers->forward(x); }
};
TORCH_MODULE(Net);

struct Workload {
  const char* name;
  int64_t width, batch;
  int depth, num_masks;
};

/// Seconds a step; `exchange` is what stands between backward() and the optimizer.
double seconds_a_step(Net& net, const Workload& workload, int steps, const std::function<void()>& exchange) {
  torch::optim::SGD optimizer(net->parameters(), 1e-3);
  const torch::Tensor x = torch::randn({workload.batch, workload.width});
  const auto step = [&] {
    optimizer.zero_grad();
    net->forward(x).square().mean().backward();
    exchange();
    optimizer.step();
  };
  for (int i = 0; i < 10; ++i) step();
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < steps; ++i) step();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() / steps;
}

/// What people write: the mean of each gradient, one after another.
std::function<void()> by_hand(Net& net, cohort::Group& gloo) {
  return [&net, &gloo] {
    for (torch::Tensor& parameter : net->parameters()) {
      gloo.all_reduce(parameter.grad(), cohort::Reduction::kSum, "a gradient");
      parameter.mutable_grad().div_(gloo.size());
    }
  };
}

double measure(const Workload& workload, const std::string& system, cohort::Session& session, cohort::Group& gloo, int steps) {
  torch::manual_seed(1);
  Net net(workload.width, workload.depth, workload.num_masks);
  session.barrier();
  if (system == "one process's work") return seconds_a_step(net, workload, steps, [] {});
  if (system == "all-reduce by hand, Gloo") return seconds_a_step(net, workload, steps, by_hand(net, gloo));
  cohort::DataParallelOptions options;
  options.check_weights = system != "DataParallel, no check_weights";
  cohort::DataParallel parallel(*net, session.group(), options);
  return seconds_a_step(net, workload, steps, [] {});
}

}  // namespace

int main(int argc, char** argv) {
  cohort::Session session = cohort::init(argc, argv);
  cohort::Group gloo = session.group().size() == 1 ? session.group() : cohort::Group::create(session.world(), {.backend = "gloo"});
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5, steps = argc > 2 ? std::atoi(argv[2]) : 200;
  const std::vector<Workload> workloads = {{"tiny", 64, 16, 3, 0}, {"mlp", 512, 64, 4, 0}, {"masks", 64, 16, 3, 12}};
  const std::vector<std::string> systems = {"one process's work", "all-reduce by hand, Gloo", "DataParallel",
                                            "DataParallel, no check_weights"};
  for (const Workload& workload : workloads) {
    std::vector<std::vector<double>> seconds(systems.size());
    for (int round = 0; round < rounds; ++round)
      for (size_t i = 0; i < systems.size(); ++i) seconds[i].push_back(measure(workload, systems[i], session, gloo, steps));
    for (size_t i = 0; i < systems.size() && session.is_first(); ++i) {
      std::sort(seconds[i].begin(), seconds[i].end());
      std::printf("%-6s %-31s %8.3f ms a step (%.3f to %.3f)\n", workload.name, systems[i].c_str(), 1e3 * seconds[i][seconds[i].size() / 2],
                  1e3 * seconds[i].front(), 1e3 * seconds[i].back());
    }
  }
}
