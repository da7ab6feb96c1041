// A program of a user's own that ends in many ways: main() catches nothing unless it is asked to. test_launchers.py runs it.
//   cohort launch -n 2 own_program HOW RANK
// Rank RANK ends as HOW says, the others wait for it in an all-reduce. `lines`: all print at once. `loop`: a training loop behind init(),
// in which rank RANK throws what WHAT says: own_program loop RANK WHAT --workers 2.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include "cohort/base/error.h"
#include "cohort/comm/group.h"
#include "cohort/session/parallel.h"
#include "cohort/session/session.h"
#include "cohort/world/world.h"

namespace {

[[noreturn]] void complain() { throw cohort::Error(cohort::ErrorCode::kBadInput, "weights.pt has 3 tensors, 4 are needed"); }

int run(const std::string& how, int who) {
  cohort::Group group = cohort::Group::create(cohort::world_from_environment());
  if (how == "threads") {
    const char* variable = std::getenv("OMP_NUM_THREADS");
    std::printf("%d %d %s\n", group.rank(), at::get_num_threads(), variable ? variable : "none");
    return 0;
  }
  at::Tensor sum = at::ones({4});
  group.all_reduce(sum, cohort::Reduction::kSum, "first sum");
  if (how == "forever") {
    if (group.rank() == 0) std::puts("begun");
    std::fflush(stdout);
    for (;;) group.all_reduce(sum, cohort::Reduction::kMax, "sum");
  }
  if (group.rank() == who) {
    std::printf("said before\n");  // Into a pipe: still in the buffer when the program ends.
    if (how == "error") complain();
    if (how == "thread") std::thread(complain).join();
    if (how == "runtime" || how == "handled") throw std::runtime_error("not of Cohort");
    if (how == "number") throw 7;
    if (how == "exit") std::exit(3);
    if (how == "kill") std::raise(SIGKILL);
    if (how == "leave") return 0;
  }
  group.all_reduce(sum, cohort::Reduction::kSum, "second sum");
  return 0;
}

/// Many lines at once, each in pieces, and nothing flushed.
int print_lines(int argc, char** argv) {
  cohort::Session session = cohort::init(argc, argv);
  session.barrier();
  for (int line = 0; line < 3000; ++line) {
    std::printf("rank %d", session.rank());
    std::printf(" line %d of many\n", line);
  }
  return 0;
}

/// Words that init() leaves are printed; a step in which another rank than `who` waits for it.
int train(int argc, char** argv) {
  cohort::Session session = cohort::init(argc, argv);
  for (int i = 2; i < argc && session.is_first(); ++i) std::printf("left %s\n", argv[i]);
  const int who = argc > 2 ? std::atoi(argv[2]) : -1;
  const std::string what = argc > 3 ? argv[3] : "";
  torch::nn::Linear net(3, 2);
  cohort::Parallel parallel(*net, session);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    if (step == 1 && session.rank() == who) {
      if (what == "libtorch") net->forward(at::ones({2, 4}));
      if (what == "memory") at::empty({int64_t{1} << 50});
      if (what == "bad_alloc") throw std::bad_alloc();
      if (what == "lines") throw std::runtime_error("sample 3:\n  no label\n");
    }
    net->forward(at::ones({2, 3})).sum().backward();
    parallel.step(optimizer);
  }
  return 0;
}

void own_handler() {
  std::puts("own handler");
  std::fflush(stdout);
  std::_Exit(9);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "threads";
  const int who = argc > 2 ? std::atoi(argv[2]) : -1;
  if (how == "lines") return print_lines(argc, argv);
  if (how == "loop") return train(argc, argv);
  if (how == "handled") std::set_terminate(own_handler);
  if (!how.starts_with("caught-")) return run(how, who);
  try {
    return run(how.substr(7), who);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "own_program: %s\n", error.what());
    return 1;
  }
}
