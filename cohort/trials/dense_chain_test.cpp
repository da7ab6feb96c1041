#include "cohort/trials/dense_chain.h"

#include <ATen/Parallel.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/activation.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/data/images/image_source.h"
#include "cohort/models/parts.h"
#include "cohort/models/registry.h"
#include "cohort/trials/trial_step.h"
#include "tests/support/skip.h"
#include "tests/support/tiny_trials.h"

namespace cohort {
namespace {

/// Whether the product is used here. Elsewhere oneDNN's is not always exact (AVX2 adds pairs in 16 bits).
bool is_used() {
  if (ByteProduct::pays(512)) return true;
  skip_test("the product in whole numbers needs a processor with AMX", /*also_in_ci=*/true);
  return false;
}

DataSet pictures(const std::vector<int64_t>& size = {3, 8, 9}, int64_t num_samples = 60) {
  const DataShape shape{DataShape::Kind::kImage, size, 4, {}};
  ImagePixels pixels{ByteBuffer(num_samples * shape.input_elements(), "test"), ByteBuffer(num_samples, "test")};
  for (int64_t i = 0; i < pixels.values.size(); ++i) pixels.values.data()[i] = static_cast<uint8_t>(random_bits(1, i) >> 56);
  for (int64_t i = 0; i < num_samples; ++i) pixels.labels.data()[i] = static_cast<uint8_t>(i % 4);
  return split_images("test", std::move(pixels), shape, {.validation_samples = 50});
}

/// Of pictures of three channels, as an evaluation has it.
struct Problem {
  DataSet data = pictures();
  const DataSource& source = *data.validation;
  ByteRows rows = ByteRows::of(source, 50).value();

  at::Tensor multiply(const at::Tensor& weight, int64_t begin, int64_t end) const {
    ByteProduct product;
    product.read_weight(weight, rows);
    at::Tensor out = at::empty({end - begin, weight.size(0)});
    product.multiply(rows, begin, end, out);
    return out;
  }
  /// What the model gets, as floats.
  at::Tensor values() const {
    std::vector<int64_t> all(50);
    std::iota(all.begin(), all.end(), 0);
    Batch batch;
    source.read(all, batch);
    at::Tensor values = at::empty({50, 3 * 8 * 9});
    std::copy(batch.values.begin(), batch.values.end(), values.mutable_data_ptr<float>());
    return values;
  }
};

/// A model of such pictures as a chain.
struct Chain {
  Chain(const Problem& problem, const char* name) : model(build_model(name, problem.source.shape(), 3)) {
    weights.adopt(*model, {});
    chain = DenseChain::make(*model, problem.source.shape(), weights);
  }
  std::shared_ptr<LayerGraph> model;
  TrialWeights weights;
  std::unique_ptr<DenseChain> chain;
};

TEST_CASE("a product in whole numbers is nearer to the true one than that of floats") {
  if (!is_used()) return;
  const Problem problem;
  const at::Tensor values = problem.values();
  for (const int64_t num_outputs : {1, 5, 64})
    for (const double size : {1.0, 1e-20, 1e20}) {
      const at::Tensor weight = at::randn({num_outputs, values.size(1)}) * size;
      const at::Tensor exact = values.to(at::kDouble).mm(weight.to(at::kDouble).t());
      const auto error = [&](const at::Tensor& product) { return (product.to(at::kDouble) - exact).abs().mean().item<double>() / size; };
      INFO(num_outputs, " outputs, weights of ", size);
      CHECK(error(problem.multiply(weight, 0, 50)) < 2e-6);  // Of outputs of about 15; the values' own rounding is in it.
      CHECK(error(problem.multiply(weight, 0, 50)) <= 1.2 * error(values.mm(weight.t())));
    }
}

TEST_CASE("so is the gradient of the weight, which may be added") {
  if (!is_used()) return;
  const Problem problem;
  const at::Tensor values = problem.values();
  for (const int64_t num_outputs : {1, 5, 64})
    for (const double size : {1.0, 1e-20, 1e20}) {
      const at::Tensor gradient = at::randn({50, num_outputs}) * size, exact = gradient.to(at::kDouble).t().mm(values.to(at::kDouble));
      const auto error = [&](const at::Tensor& product) { return (product.to(at::kDouble) - exact).abs().mean().item<double>() / size; };
      INFO(num_outputs, " outputs, gradients of ", size);
      ByteProduct product;
      at::Tensor out = at::empty({num_outputs, values.size(1)});
      product.multiply_gradient(problem.rows, gradient, false, out);
      CHECK(error(out) < 1e-6);  // Of gradients of about 7; the values' own rounding is in it.
      CHECK(error(out) <= 1.2 * error(gradient.t().mm(values)));
      at::Tensor twice = out.clone();
      product.multiply_gradient(problem.rows, gradient, true, twice);
      CHECK(twice.equal(out + out));
    }
  at::Tensor gradient = at::zeros({50, 2}), out = at::empty({2, values.size(1)});
  gradient[3][1] = NAN;
  ByteProduct().multiply_gradient(problem.rows, gradient, false, out);
  CHECK(out[0].abs().max().item<double>() == 0);
  CHECK(out[1].isnan().all().item<bool>());
}

TEST_CASE("a row's bits depend on no other row") {
  if (!is_used()) return;
  const Problem problem;
  const at::Tensor weight = at::randn({7, problem.rows.values.size(1)}), whole = problem.multiply(weight, 0, 50);
  for (const auto& [begin, end] : {std::pair{0, 1}, {3, 20}, {49, 50}})
    CHECK(problem.multiply(weight, begin, end).equal(whole.narrow(0, begin, end - begin)));
}

TEST_CASE("zeros, one large weight, and what is not finite") {
  if (!is_used()) return;
  const Problem problem;
  at::Tensor weight = at::empty({4, problem.rows.values.size(1)}).zero_();
  weight[1][5] = 3;
  weight[2][0] = NAN;
  weight[3][7] = -INFINITY;
  const at::Tensor out = problem.multiply(weight, 0, 50), values = problem.values();
  CHECK(out.select(1, 0).abs().max().item<double>() == 0);
  CHECK((out.select(1, 1) - 3 * values.select(1, 5)).abs().max().item<double>() < 2e-6);
  CHECK(out.select(1, 2).isnan().all().item<bool>());
  CHECK(out.select(1, 3).isnan().all().item<bool>());
}

TEST_CASE("a chain evaluates bytes as the model evaluates floats") {
  if (!is_used()) return;
  const at::NoGradGuard no_grad;
  const Problem problem;
  const at::Tensor values = problem.values().view({50, 3, 8, 9}), target = at::randint(4, {50}, at::kLong);
  for (const char* const name : {"fc:hidden=33,layers=2", "fc:layers=0"}) {
    Chain made(problem, name);
    for (const double factor : {1.0, 0.5}) {  // The weights of the second are read again.
      made.weights.weights().mul_(factor);
      made.chain->read_weight_for(problem.rows);
      for (const auto& [begin, end] : {std::pair{0, 50}, {17, 50}, {17, 18}}) {
        const at::Tensor labels = target.narrow(0, begin, end - begin), logits = made.model->forward(values.narrow(0, begin, end - begin));
        const LossSums sums = made.chain->evaluate(problem.rows, begin, end, labels);
        INFO(name, " from ", begin, " to ", end, ", weights x ", factor);
        CHECK(sums.loss == doctest::Approx(at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum).item<double>()).epsilon(1e-6));
        CHECK(sums.num_wrong == static_cast<double>(end - begin) - logits.argmax(-1).eq(labels).sum().item<double>());
      }
    }
  }
}

TEST_CASE("a chain trains on bytes as on floats") {
  if (!is_used()) return;
  const Problem problem;
  const at::Tensor values = problem.values().view({50, 3, 8, 9}), target = at::randint(4, {50}, at::kLong);
  for (const char* const name : {"fc:hidden=33,layers=2", "fc:layers=0"}) {
    Chain made(problem, name);
    const at::Tensor floats = at::zeros({made.weights.size()}), bytes = at::zeros({made.weights.size()});
    for (const bool accumulate : {false, true}) {
      const double loss = made.chain->gradient(values, target, 0.1, 0.5, accumulate, floats.mutable_data_ptr<float>());
      INFO(name);
      CHECK(made.chain->gradient(problem.rows, target, 0.1, 0.5, accumulate, bytes.mutable_data_ptr<float>()) ==
            doctest::Approx(loss).epsilon(1e-6));
      CHECK((floats - bytes).abs().max().item<double>() < 1e-6);
      CHECK(floats.abs().max().item<double>() > 0.01);
    }
  }
}

TEST_CASE("a batch of bytes is what the source gives, in other numbers") {
  if (!is_used()) return;
  const DataSet data = pictures({3, 16, 16}), narrow = pictures();
  const TrialSamples samples(data.train, 0, INT64_C(1) << 30);
  REQUIRE(samples.has_bytes());
  CHECK(!TrialSamples(data.train, 0, 0).has_bytes());
  CHECK(!TrialSamples(narrow.train, 0, INT64_C(1) << 30).has_bytes());
  ByteBatch batch(samples);
  for (const std::vector<int64_t>& indices : {std::vector<int64_t>{3, 1}, {0, 2, 2, 7, 5}, {4}, {9, 8}}) {
    Batch expected;
    data.train->read(indices, expected);
    batch.gather(indices);
    const ByteRows& rows = batch.rows();
    REQUIRE(rows.values.size(0) == std::ssize(indices));
    CHECK(std::ranges::equal(expected.targets, std::span(batch.target().const_data_ptr<int64_t>(), indices.size())));
    const int8_t* const values = rows.values.const_data_ptr<int8_t>();
    double worst = 0;
    for (size_t i = 0; i < expected.values.size(); ++i) {
      const size_t channel = i % 768 / 256;
      const double value = (values[i] + 128 + rows.offset[channel]) * rows.factor[channel];
      worst = std::max(worst, std::abs(value - static_cast<double>(expected.values[i])));
    }
    CHECK(worst < 1e-6);
  }
}

TEST_CASE("steps of large batches are autograd's within rounding") {
  if (!is_used()) return;
  const DataSet data = pictures({1, 28, 28}, 1250);
  const TrialData samples(data);
  REQUIRE(samples.train.has_bytes());
  CHECK(ByteProduct::pays_to_train(600));
  study::StudySpec spec;
  spec.optimizer = "momentum";
  const TrialSchedule schedule = trial_schedule(spec, {{"learning_rate", 0.05}, {"momentum", 0.9}}, 10);
  std::array<std::vector<double>, 2> losses;
  std::array<at::Tensor, 2> weights;
  for (const bool by_chain : {false, true}) {
    TrialStep step(samples, Group(), {.use_dense_chain = by_chain});
    step.begin(build_model("fc:hidden=32,layers=2", samples.train.shape(), 1), schedule, 600, 1);
    for (int64_t number = 0; number < 5; ++number) {
      losses[by_chain].push_back(step.compute(number, false).loss);
      step.update(number);
    }
    weights[by_chain] = step.weights().weights().clone();
  }
  for (size_t i = 0; i < losses[0].size(); ++i) CHECK(losses[1][i] == doctest::Approx(losses[0][i]).epsilon(2e-6));
  CHECK(losses[0].back() < losses[0].front());
  CHECK((weights[0] - weights[1]).abs().max().item<double>() < 2e-6);
}

}  // namespace

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
