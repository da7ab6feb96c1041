#include "cohort/trials/dense_chain.h"

#include <ATen/Parallel.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/activation.h>

#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/models/parts.h"
#include "cohort/models/registry.h"
#include "cohort/trials/trial_step.h"
#include "tests/support/tiny_trials.h"

namespace cohort {
namespace {

const DataShape kShape{DataShape::Kind::kImage, {1, 8, 8}, 5, {}};

std::unique_ptr<DenseChain> chain_of(LayerGraph& model, TrialWeights& weights) {
  at::set_num_threads(1);  // Waiting threads would cost more than these sizes.
  weights.adopt(model, {});
  return DenseChain::make(model, kShape, weights);
}

TEST_CASE("loss and gradient are autograd's within rounding") {
  for (const char* const name : {"fc:hidden=33,layers=2", "fc:layers=0", "fc:hidden=7,layers=4"})
    for (const int64_t num_samples : {1, 2, 17, 100})
      for (const double smoothing : {0.0, 0.1, 1.0}) {
        const auto model = build_model(name, kShape, 3);
        TrialWeights weights;
        const auto chain = chain_of(*model, weights);
        REQUIRE(chain);
        const at::Tensor input = at::randn({num_samples, 1, 8, 8}), target = at::randint(5, {num_samples}, at::kLong);
        const at::Tensor logits = model->forward(input);
        at::Tensor loss = at::cross_entropy_loss(logits, target, {}, at::Reduction::Mean, -100, smoothing) * 0.25;
        loss.backward();
        const at::Tensor flat = at::zeros({weights.size()});
        const auto worst = [&](double factor) {
          double difference = 0;
          for (const TrialWeights::Segment& segment : weights.segments()) {
            const at::Tensor mine = flat.narrow(0, segment.offset, segment.count).view(segment.parameter.sizes());
            difference = std::max(difference, (mine - factor * segment.parameter.grad()).abs().max().item<double>());
          }
          return difference;
        };
        INFO(name, " samples ", num_samples, " smoothing ", smoothing);
        CHECK(chain->gradient(input, target, smoothing, 0.25, false, flat.mutable_data_ptr<float>()) ==
              doctest::Approx(loss.item<double>()).epsilon(1e-6));
        CHECK(worst(1) < 1e-6);
        chain->gradient(input, target, smoothing, 0.25, true, flat.mutable_data_ptr<float>());
        CHECK(worst(2) < 2e-6);
        chain->gradient(input, target, smoothing, 0.25, false, flat.mutable_data_ptr<float>());
        CHECK(worst(1) < 1e-6);
        const LossSums sums = chain->evaluate(input, target);
        CHECK(sums.loss == doctest::Approx(at::cross_entropy_loss(logits, target, {}, at::Reduction::Sum).item<double>()).epsilon(1e-6));
        CHECK(sums.num_wrong == static_cast<double>(num_samples) - logits.argmax(-1).eq(target).sum().item<double>());
      }
}

TEST_CASE("what is not finite stays so, and wrong labels are refused") {
  const auto model = build_model("fc:hidden=6,layers=2", kShape, 3);
  TrialWeights weights;
  const auto chain = chain_of(*model, weights);
  const at::Tensor flat = at::zeros({weights.size()}), target = at::zeros({3}, at::kLong);
  for (const float value : {NAN, INFINITY}) {
    weights.weights()[0] = value;
    const at::Tensor input = at::randn({3, 1, 8, 8});
    CHECK(!std::isfinite(chain->gradient(input, target, 0, 1, false, flat.mutable_data_ptr<float>())));
    CHECK(!std::isfinite(chain->evaluate(input, target).loss));
  }
  target[1] = 5;
  CHECK_THROWS_AS(chain->evaluate(at::randn({3, 1, 8, 8}), target), cohort::Error);
  target[1] = -1;
  CHECK_THROWS_AS(chain->gradient(at::randn({3, 1, 8, 8}), target, 0, 1, false, flat.mutable_data_ptr<float>()), cohort::Error);
}

TEST_CASE("other models are no chains") {
  TrialWeights weights;
  const auto is_chain = [&](LayerGraph& model) { return chain_of(model, weights) != nullptr; };
  CHECK(!is_chain(*build_model("cnn:conv1=2,conv2=2,hidden=4", kShape, 1)));
  LayerGraph tied;  // One module at two places.
  add_flatten(tied, "flatten");
  torch::nn::Linear shared(64, 64);
  tied.add("first", "linear", shared);
  tied.add_layer("second", "linear", nullptr, [shared](const LayerGraph::Inputs& in) mutable { return shared->forward(in[0]); }, {});
  CHECK(!is_chain(tied));
  LayerGraph frozen;
  add_flatten(frozen, "flatten");
  add_linear(frozen, "first", 64, 9);
  add_linear(frozen, "second", 9, 5);
  CHECK(is_chain(frozen));
  frozen.parameters()[0].set_requires_grad(false);
  CHECK(!is_chain(frozen));
  LayerGraph residual;
  add_flatten(residual, "flatten");
  const int first = add_linear(residual, "first", 64, 64);
  add_sum(residual, "sum", first, 0);
  CHECK(!is_chain(residual));
  LayerGraph rows;  // Linear on the last dimension of a picture.
  add_linear(rows, "first", 8, 5);
  CHECK(!is_chain(rows));
}

TEST_CASE("a layer that is not what its kind says is found out") {
  if (!registered_models().contains("impostor"))
    register_model("impostor", "", [](const ModelOptions& options) {
      auto graph = std::make_shared<LayerGraph>();
      add_flatten(*graph, "flatten");
      add_linear(*graph, "first", options.data().input_elements(), 8);
      graph->add("relu", "relu", [](const LayerGraph::Inputs& in) { return in[0].tanh(); });
      add_linear(*graph, "output", 8, options.data().num_classes);
      return graph;
    });
  for (const char* const name : {"impostor", "fc:hidden=8"}) {
    const study::StudySpec spec = tiny_spec(name);
    const TrialData data(data_of(spec));
    TrialStep step(data, Group(), {});
    step.begin(build_model(name, data.train.shape(), 1), trial_schedule(spec, {{"learning_rate", 0.1}}, 10), 8, 1);
    CHECK(step.uses_dense_chain() == (std::string(name) != "impostor"));
    CHECK(std::isfinite(step.compute(0, false).loss));
  }
}

}  // namespace
}  // namespace cohort
