#include "cohort/train/fused_trials.h"

#include <doctest/doctest.h>

#include <cmath>

#include "cohort/base/error.h"
#include "cohort/models/registry.h"
#include "cohort/parallel/parameters.h"
#include "cohort/train/fusion_probe.h"
#include "cohort/train/trial_step.h"
#include "cohort/train/trial_test_support.h"

namespace cohort {
namespace {

/// Losses of each step, then all weights in a row.
std::vector<double> unfused(const study::StudySpec& spec, const TrialData& data, const study::TrialOrder& order) {
  TrialStep step(data, Group(), {.use_dense_chain = false});
  const auto model = build_model(spec.model, data.train.shape(), order.seed);
  step.begin(model, trial_schedule(spec, order.parameters, order.train_steps), order.batch_size, order.seed);
  std::vector<double> numbers;
  for (int64_t i = 0; i < order.train_steps; ++i) {
    numbers.push_back(step.compute(i, false).loss);
    if (!std::isfinite(numbers.back()) || numbers.back() > spec.diverged_above) return numbers;
    step.update(i);
  }
  for (const NamedTensor& parameter : distinct_parameters(*model)) numbers.push_back(parameter.tensor.abs().sum().item<double>());
  return numbers;
}

TEST_CASE("fused trials train as each would alone") {
  for (const char* const optimizer : {"sgd", "nesterov", "adam"})
    for (const char* const model : {"fc:hidden=10,layers=2", "cnn:conv1=3,conv2=4,hidden=8"}) {
      study::StudySpec spec = tiny_spec(model, optimizer);
      spec.diverged_above = 50;
      const TrialData data(data_of(spec));
      const bool is_adam = std::string(optimizer) == "adam";
      std::vector<study::TrialOrder> orders;
      for (const double rate : {0.1, 0.02, 0.05}) {
        study::TrialOrder order = tiny_order(is_adam ? rate / 10 : rate, 16, 15);
        order.seed += orders.size();
        order.parameters.insert({{"label_smoothing", 0.1}, {"decay_steps", 10}, {"end_factor", 0.1}});
        if (std::string(optimizer) == "nesterov") order.parameters["momentum"] = 0.8 + 0.05 * static_cast<double>(orders.size());
        orders.push_back(order);
      }
      orders[1].parameters["learning_rate"] = 1e20;  // Diverges between two that do not.
      FusedTrials fused(spec, data, orders);
      std::vector<std::vector<double>> numbers(orders.size());
      for (int64_t i = 0; i < 15; ++i) {
        fused.step();
        for (size_t trial = 0; trial < orders.size(); ++trial)
          if (fused.is_alive(trial)) numbers[trial].push_back(fused.loss(trial));
      }
      for (const size_t trial : {size_t{0}, size_t{2}}) {
        for (const at::Tensor& weights : fused.weights(trial)) numbers[trial].push_back(weights.abs().sum().item<double>());
        INFO(optimizer, " ", model, " trial ", trial);
        CHECK(largest_difference(numbers[trial], unfused(spec, data, orders[trial])) < 1e-4);
        CHECK(fused.steps(trial) == 15);
      }
      CHECK(!fused.is_alive(1));
      const std::vector<double> diverged = unfused(spec, data, orders[1]);
      CHECK(fused.steps(1) == std::ssize(diverged) - 1);
      for (const at::Tensor& weights : fused.weights(1)) CHECK(weights.numel() > 0);
    }
}

TEST_CASE("what can not be fused is refused") {
  const study::StudySpec spec = tiny_spec("fc:hidden=4");
  const TrialData data(data_of(spec));
  CHECK(FusedTrials::can_fuse(*build_model("cnn", data.train.shape(), 1)));
  CHECK(!FusedTrials::can_fuse(*build_model("resnet8", data.train.shape(), 1)));
  CHECK_THROWS_AS(FusedTrials(spec, data, {}), Error);
  CHECK_THROWS_AS(FusedTrials(spec, data, {tiny_order(0.1, 8), tiny_order(0.1, 16)}), Error);
  CHECK_THROWS_AS(FusedTrials(tiny_spec("resnet8"), data, {tiny_order(0.1)}), Error);
}

TEST_CASE("the probe measures both ways") {
  const study::StudySpec spec = tiny_spec("fc:hidden=4");
  const TrialData data(data_of(spec));
  const FusionProbe probe = probe_fusion(spec, data, 4, 2);
  CHECK(probe.fused_seconds > 0);
  CHECK(probe.unfused_seconds > 0);
  CHECK(std::isfinite(probe.fused_seconds));
  CHECK(!probe_fusion(tiny_spec("resnet8:width=4"), data, 4, 2).pays());
}

}  // namespace
}  // namespace cohort
