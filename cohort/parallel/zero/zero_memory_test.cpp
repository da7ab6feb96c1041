#include "cohort/parallel/zero/zero_data_parallel.h"

#include "cohort/base/fail.h"
#include "cohort/parallel/watch/operator_watch.h"
#include "tests/support/zero_model.h"

namespace cohort {
namespace {

using namespace zero_test;

TEST_CASE("stage 3 holds slices and no more whole units than allowed, and is ahead of use once it knows the order") {
  const torch::Tensor input = torch::randn({4, 128});
  run_thread_ranks(2, [&](Group& group) {
    Deep model;
    ZeroDataParallel zero(*model, group, {.stage = 3, .rule = {.kind = UpdateRule::Kind::kAdam}, .bucket_bytes = 70 << 10});
    const int64_t unit = (128 * 128 + 128) * 4;  // A multiple of 128 bytes: no padding.
    if (zero.unit_bytes() != 0) FAIL("whole units after construction");
    for (const torch::Tensor& parameter : model->parameters()) {
      bool refused = false;
      try {
        parameter.data_ptr<float>();
      } catch (const c10::Error& error) {
        refused = std::string(error.what()).find("gather_weights()") != std::string::npos;
      }
      if (!refused) FAIL("a parameter has memory after construction");
    }
    int64_t unforeseen_before = 0;
    for (int step = 0; step < 4; ++step) {
      zero.zero_grad();
      const torch::Tensor loss = model->forward(input).sum();
      if (zero.unit_bytes() > 2 * unit) FAIL(concat("more than two units after forward: ", zero.unit_bytes(), " bytes of units of ", unit));
      unforeseen_before = zero.num_unforeseen_gathers();
      loss.backward();
      for (const torch::Tensor& parameter : model->parameters())
        if (!is_stand_in(parameter.grad()) || parameter.grad().storage().nbytes() > 8) FAIL("a whole gradient is left after backward");
      zero.finish_backward();
      zero.step({.learning_rate = 0.01});
      if (zero.unit_bytes() != 0) FAIL("whole units after step()");
    }
    // Layers 8 ... 2 are predicted in both directions; the first of a step is requested.
    if (zero.num_unforeseen_gathers() != unforeseen_before) FAIL("gathers in backward were not foreseen");
    if (zero.peak_unit_bytes() > 4 * unit) FAIL(concat("peak of ", zero.peak_unit_bytes(), " bytes of units of ", unit));
    const MemoryForecast forecast = zero.memory_forecast();
    if (forecast.weight_bytes != 8 * unit / 2 + 2 * unit || forecast.gradient_bytes != 8 * unit / 2 + 4 * unit ||
        forecast.optimizer_bytes != 2 * 8 * unit / 2)
      FAIL("forecast");
    if (zero.peak_bytes() > forecast.weight_bytes + forecast.gradient_bytes + forecast.optimizer_bytes)
      FAIL("more than the forecast was held");
    if (zero.peak_bytes() < (4 + 4 + 8 + 2) * unit) FAIL("less than slices, state and two units cannot be");
  });
}

TEST_CASE("stages 1 and 2 forecast what they hold") {
  run_thread_ranks(2, [&](Group& group) {
    const int64_t unit = (128 * 128 + 128) * 4;
    for (const int stage : {1, 2}) {
      Deep model;
      ZeroDataParallel zero(*model, group, {.stage = stage, .rule = {.kind = UpdateRule::Kind::kMomentum}, .bucket_bytes = 70 << 10});
      const MemoryForecast forecast = zero.memory_forecast();
      if (forecast.weight_bytes != 8 * unit || forecast.optimizer_bytes != 4 * unit) FAIL("forecast");
      if (forecast.gradient_bytes != (stage == 1 ? 8 : 4 + 2) * unit) FAIL("forecast of gradients");
      model->forward(torch::ones({2, 128})).sum().backward();
      zero.finish_backward();
      if (stage == 2 && zero.peak_unit_bytes() > 2 * unit) FAIL("more than two units of gradients at once");
      for (const torch::Tensor& parameter : model->parameters())
        if (is_stand_in(parameter.grad()) == (stage == 1)) FAIL("gradients after backward");
    }
  });
}

TEST_CASE("evaluation under stage 3: between steps, with other numbers of batches on each rank, without gradients or in inference mode") {
  const Scenario s{.stage = 3, .num_ranks = 3};
  run_thread_ranks(s.num_ranks, [&](Group& group) {
    Awkward model(5), whole(5);
    ZeroDataParallel zero(*model, group, options_of(s));
    for (int step = 1; step <= 3; ++step) {
      train(zero, model, group, s, step, step);
      zero.gather_weights();
      for (const NamedTensor& parameter : distinct_parameters(*whole)) {
        at::NoGradGuard no_grad;
        parameter.tensor.copy_(model->named_parameters()[parameter.name]);
      }
      zero.release_weights();
      if (zero.unit_bytes() != 0) FAIL("weights were not released");
      const torch::Tensor rows = samples(100);
      for (int batch = 0; batch < group.rank() * 2; ++batch) {  // Rank 0 has none.
        const bool branch = batch % 2 == 1;
        torch::Tensor found, expected;
        if (batch < 2) {
          at::NoGradGuard no_grad;
          found = model->forward(rows, branch);
          expected = whole->forward(rows, branch);
        } else {
          c10::InferenceMode inference;
          found = model->forward(rows, branch);
          expected = whole->forward(rows, branch);
        }
        if (!torch::equal(found, expected)) FAIL("evaluation differs");
      }
      zero.finish_evaluation();
      group.barrier();
    }
  });
}

}  // namespace
}  // namespace cohort
