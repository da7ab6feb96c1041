#pragma once
// A small net that Parallel trains with an optimizer given, and its twin in one process.

#include <string>
#include <vector>

#include "tests/support/torture_models.h"

namespace cohort::torture {

namespace optim = torch::optim;

inline const std::vector<std::string> kReplicas = {"dp", "zero=1", "zero=2", "zero=3"};

inline nn::Sequential a_net() {
  nn::Sequential net(nn::Linear(6, 8), nn::Tanh(), nn::Linear(8, 4));
  net->to(at::kDouble);
  fill(*net, 3);
  return net;
}

inline Tensor mean_square(const Tensor& output, const Tensor&) { return output.square().mean(); }

/// One rank's, with an optimizer given to Parallel, and what one process has.
struct Trained {
  Trained(Session& session, const std::string& layout)
      : session(session),
        parallel(*net, session,
                 {.layout = layout, .optimizer = optim::SGDOptions(0.1).momentum(0.5), .example = at::zeros({8, 6}, at::kDouble)}),
        optimizer(whole->parameters(), optim::SGDOptions(0.1).momentum(0.5)) {}

  void backward(int64_t seed) {
    const Tensor x = batch(8, seed);
    mean_square(net->forward(session.local(x)), x).backward();
    mean_square(whole->forward(x), x).backward();
  }
  void step() { parallel.step(), optimizer.step(), optimizer.zero_grad(); }
  void compare(const std::string& what) {
    const at::NoGradGuard no_grad;
    const Tensor x = batch(8, 77);
    expect_equal(parallel.forward(x).clone(), whole->forward(x), what);
    parallel.finish_evaluation();
  }

  Session& session;
  nn::Sequential net = a_net(), whole = a_net();
  Parallel parallel;
  optim::SGD optimizer;
};

}  // namespace cohort::torture
