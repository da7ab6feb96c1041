#include "cohort/train/trial/byte_product.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "cohort/base/random.h"
#include "cohort/data/images/image_source.h"
#include "cohort/models/registry.h"
#include "cohort/train/trial/dense_chain.h"

namespace cohort {
namespace {

DataSet pictures() {
  const DataShape shape{DataShape::Kind::kImage, {3, 8, 9}, 4, {}};
  constexpr int64_t kSamples = 60;
  ImagePixels pixels{ByteBuffer(kSamples * shape.input_elements(), "test"), ByteBuffer(kSamples, "test")};
  for (int64_t i = 0; i < pixels.values.size(); ++i) pixels.values.data()[i] = static_cast<uint8_t>(random_bits(1, i) >> 56);
  std::fill_n(pixels.labels.data(), kSamples, uint8_t{1});
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

TEST_CASE("a product in whole numbers is nearer to the true one than that of floats") {
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

TEST_CASE("a row's bits depend on no other row") {
  const Problem problem;
  const at::Tensor weight = at::randn({7, problem.rows.values.size(1)}), whole = problem.multiply(weight, 0, 50);
  for (const auto& [begin, end] : {std::pair{0, 1}, {3, 20}, {49, 50}})
    CHECK(problem.multiply(weight, begin, end).equal(whole.narrow(0, begin, end - begin)));
}

TEST_CASE("zeros, one large weight, and what is not finite") {
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
  const at::NoGradGuard no_grad;
  const Problem problem;
  const at::Tensor values = problem.values().view({50, 3, 8, 9}), target = at::randint(4, {50}, at::kLong);
  for (const char* const name : {"fc:hidden=33,layers=2", "fc:layers=0"}) {
    const auto model = build_model(name, problem.source.shape(), 3);
    TrialWeights weights;
    weights.adopt(*model, {});
    const auto chain = DenseChain::make(*model, problem.source.shape(), weights);
    for (const double factor : {1.0, 0.5}) {  // The weights of the second are read again.
      weights.weights().mul_(factor);
      chain->read_weight_for(problem.rows);
      for (const auto& [begin, end] : {std::pair{0, 50}, {17, 50}, {17, 18}}) {
        const at::Tensor labels = target.narrow(0, begin, end - begin), logits = model->forward(values.narrow(0, begin, end - begin));
        const LossSums sums = chain->evaluate(problem.rows, begin, end, labels);
        INFO(name, " from ", begin, " to ", end, ", weights x ", factor);
        CHECK(sums.loss == doctest::Approx(at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum).item<double>()).epsilon(1e-6));
        CHECK(sums.num_wrong == static_cast<double>(end - begin) - logits.argmax(-1).eq(labels).sum().item<double>());
      }
    }
  }
}

}  // namespace
}  // namespace cohort
