#include "cohort/train/async/hogwild.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <torch/nn/module.h>
#include <unistd.h>

#include "cohort/base/error.h"
#include "cohort/base/text/json.h"
#include "cohort/train/async/gradient_server.h"

namespace cohort {
namespace {

struct Toy : torch::nn::Module {
  Toy() {
    first = register_parameter("first", at::ones({3, 2}));
    second = register_parameter("second", at::full({1000}, 2.0));
    mean = register_buffer("mean", at::full({2}, 10.0));
  }
  TicketResult result(double gradient, double statistic) const {
    return {.loss = 1, .gradients = {at::full({3, 2}, gradient), at::full({1000}, gradient)}, .buffers = {at::full({2}, statistic)}};
  }
  at::Tensor first, second, mean;
};

double value_of(const at::Tensor& tensor) { return tensor.flatten()[0].item<double>(); }

TEST_CASE("hogwild: workers and server have one memory; one worker makes the steps of plain SGD") {
  const UpdateRule rule{.weight_decay = 0.1};
  Toy served, mine, plain;
  const WorkerSlot memory = share_weights(served);
  CHECK(value_of(served.first) == 1);
  HogwildServer server(served, 4);
  HogwildWorker worker(mine, rule);
  {
    at::NoGradGuard no_grad;
    served.second.fill_(3), plain.second.fill_(3);
  }
  worker.share(memory.address());
  CHECK(value_of(mine.second) == 3);
  CHECK(mine.first.requires_grad());
  GradientServer reference(plain, {.rule = rule, .global_batch = 4});
  for (int step = 0; step < 3; ++step) {
    const StepNumbers numbers{.learning_rate = 0.1, .clip_norm = 20};
    Work work{.ticket = {step, 0, {0, 4}, 4}}, same = work;
    server.pull(work, numbers), reference.pull(same, numbers);
    work.tensors = worker.hand_over(work.ticket, mine.result(0.5 + step, step), numbers).tensors;
    reference.worked(same, plain.result(0.5 + step, step), numbers);
    server.push(work, numbers), reference.push(same, numbers);
    worker.share(memory.address());  // As one that comes again.
  }
  CHECK(at::equal(served.first, plain.first));
  CHECK(at::equal(mine.second, plain.second));
  CHECK(at::equal(served.mean, plain.mean));
  CHECK(server.version() == 3);
}

TEST_CASE("hogwild: two workers write into the same weights, statistics follow by their part, staleness counts what was told") {
  Toy served, one, two;
  const WorkerSlot memory = share_weights(served);
  HogwildServer server(served, 4);
  HogwildWorker a(one, {}), b(two, {});
  a.share(memory.address()), b.share(memory.address());
  const StepNumbers numbers{.learning_rate = 1};
  Work first{.ticket = {0, 0, {0, 2}, 4}}, second{.ticket = {0, 1, {2, 4}, 4}};
  server.pull(first, numbers), server.pull(second, numbers);
  first.tensors = a.hand_over(first.ticket, one.result(0.25, 20), numbers).tensors;
  CHECK(value_of(two.first) == 0.75);  // Before anybody told the server.
  second.tensors = b.hand_over(second.ticket, two.result(0.5, 30), numbers).tensors;
  CHECK(value_of(served.first) == 0.25);
  CHECK(server.push(first, numbers).staleness == 0);
  const PushOutcome outcome = server.push(second, numbers);
  CHECK(outcome.staleness == 1);
  CHECK(outcome.late_steps == 0.5);
  CHECK(value_of(served.mean) == doctest::Approx(22.5));
  Json state = server.state();
  HogwildServer again(served, 4);
  CHECK(again.loaded_pieces(state, "test").empty());
  again.loaded(state);
  CHECK(again.version() == 2);
  state["samples"] = -1;
  CHECK_THROWS_AS(again.loaded_pieces(state, "test"), Error);
  HogwildWorker lost(one, {});
  CHECK_THROWS_AS(lost.share("/proc/1/fd/0 00000000000000000000000000000000"), Error);
}

TEST_CASE("hogwild: a process that is killed while it writes leaves whole numbers, and others go on") {
  Toy served, mine;
  const WorkerSlot memory = share_weights(served);
  int told[2];
  REQUIRE(::pipe(told) == 0);
  const pid_t child = ::fork();
  if (child == 0) {  // Adds ones for ever, with plain stores; nothing of LibTorch runs in a forked child.
    float* const values = memory.down()[1].data_ptr<float>();
    [[maybe_unused]] const auto written = ::write(told[1], "x", 1);
    for (volatile float* value = values;; value = value + 1 == values + 1000 ? values : value + 1) *value = *value + 1;
  }
  char byte = 0;
  REQUIRE(::read(told[0], &byte, 1) == 1);
  while (served.second[999].item<float>() < 5) {
  }
  ::kill(child, SIGKILL);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WTERMSIG(status) == SIGKILL);
  for (const int descriptor : told) ::close(descriptor);
  const at::Tensor before = served.second.detach().clone();
  CHECK(at::equal(before, before.round()));
  HogwildWorker worker(mine, {});
  worker.share(memory.address());
  worker.hand_over({0, 0, {0, 4}, 4}, mine.result(1, 0), {.learning_rate = 1});
  CHECK(at::equal(served.second.detach(), before - 1));
}

}  // namespace
}  // namespace cohort
