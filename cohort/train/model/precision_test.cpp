#include "cohort/train/model/precision.h"

#include <ATen/autocast_mode.h>
#include <doctest/doctest.h>
#include <torch/torch.h>

#include "cohort/base/fail.h"
#include "cohort/models/parts.h"
#include "cohort/models/registry.h"
#include "cohort/parallel/make_strategy.h"
#include "cohort/train/model/batch_tensors.h"
#include "cohort/train/step/loss_scaler.h"
#include "tests/support/text.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/threads.h"

namespace cohort {
namespace {

at::ScalarType type_of_product() { return at::matmul(at::ones({2, 2}), at::ones({2, 2})).scalar_type(); }

TEST_CASE("names") {
  for (const char* name : {"fp32", "bf16", "fp16"}) CHECK(std::string(name_of(parse_precision(name))) == name);
  CHECK_THROWS_WITH_AS(parse_precision("fp8"), "precision 'fp8' is not known; use fp32, bf16 or fp16", Error);
  CHECK(needs_loss_scale(Precision::kFp16));
  CHECK_FALSE(needs_loss_scale(Precision::kBf16));
  CHECK(precision_warning(Precision::kBf16, at::kCPU) == "");
  CHECK(precision_warning(Precision::kFp16, at::kCUDA) == "");
  CHECK(precision_warning(Precision::kBf16, at::kCUDA, true) == "");
  CHECK((precision_warning(Precision::kBf16, at::kCPU, true) == "") == cpu_has_lstm_in(at::kBFloat16));
  CHECK_FALSE(cpu_has_lstm_in(at::kHalf));
#if defined(__x86_64__)
  const char* const limit = std::getenv("ONEDNN_MAX_CPU_ISA");
  const std::string before = limit ? limit : "";
  ::setenv("ONEDNN_MAX_CPU_ISA", "avx512_core_bf16", 1);
  CHECK(mentions(precision_warning(Precision::kFp16, at::kCPU), "no fp16 arithmetic"));
  limit ? ::setenv("ONEDNN_MAX_CPU_ISA", before.c_str(), 1) : ::unsetenv("ONEDNN_MAX_CPU_ISA");
#endif
}

TEST_CASE("a scope sets the type of products and restores what was there, also by an exception and when nested") {
  CHECK((type_of_product() == at::kFloat));
  {
    const AutocastScope none(Precision::kFp32, at::kCPU);
    CHECK((type_of_product() == at::kFloat));
    CHECK_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  }
  {
    const AutocastScope outer(Precision::kBf16, at::kCPU);
    CHECK((type_of_product() == at::kBFloat16));
    try {
      const AutocastScope inner(Precision::kFp16, at::kCPU);
      CHECK((type_of_product() == at::kHalf));
      throw std::runtime_error("out");
    } catch (const std::runtime_error&) {
    }
    CHECK((type_of_product() == at::kBFloat16));
    const AutocastScope none(Precision::kFp32, at::kCPU);
    CHECK((type_of_product() == at::kBFloat16));
  }
  CHECK((type_of_product() == at::kFloat));
  CHECK((at::autocast::get_autocast_dtype(at::kCPU) == at::kBFloat16));  // LibTorch's default
  CHECK_THROWS_AS(AutocastScope(Precision::kBf16, at::kMeta), Error);
}

TEST_CASE("copies of weights end with their scope, and do not serve another type") {
  const at::Tensor weight = at::ones({2, 2}).requires_grad_(), x = at::ones({2, 2});
  const auto product = [&](Precision precision) {
    const AutocastScope scope(precision, at::kCPU);
    return at::matmul(x, weight)[0][0].item<double>();
  };
  CHECK(product(Precision::kBf16) == 2);
  at::NoGradGuard no_grad;
  weight.fill_(3);
  CHECK(product(Precision::kBf16) == 6);
  weight.fill_(1.0009765625);  // 1 + 2^-10: one unit of half, rounds to 1 in bf16
  const at::AutoGradMode with_grad(true);
  const AutocastScope outer(Precision::kBf16, at::kCPU);
  CHECK(at::matmul(x, weight)[0][0].item<double>() == 2);
  CHECK(product(Precision::kFp16) == 2.001953125);
  CHECK(at::matmul(x, weight)[0][0].item<double>() == 2);
}

TEST_CASE("gradients and parameters stay fp32; the loss gets fp32 logits") {
  for (const Precision precision : {Precision::kBf16, Precision::kFp16}) {
    torch::nn::Sequential model(torch::nn::Conv2d(1, 4, 3), torch::nn::BatchNorm2d(4), torch::nn::ReLU(), torch::nn::Flatten(),
                                torch::nn::LayerNorm(torch::nn::LayerNormOptions({144})), torch::nn::Linear(144, 3));
    at::Tensor logits;
    {
      const AutocastScope scope(precision, at::kCPU);
      logits = model->forward(at::ones({5, 1, 8, 8}));
    }
    CHECK((logits.scalar_type() == (precision == Precision::kBf16 ? at::kBFloat16 : at::kHalf)));
    const at::Tensor loss = cross_entropy(for_loss(logits), at::zeros({5}, at::kLong));
    CHECK((loss.scalar_type() == at::kFloat));
    loss.backward();
    for (const auto& item : model->named_parameters()) {
      INFO(item.key());
      CHECK((item.value().scalar_type() == at::kFloat));
      REQUIRE(item.value().grad().defined());
      CHECK((item.value().grad().scalar_type() == at::kFloat));
    }
  }
  const at::Tensor already = at::ones({2});
  CHECK(for_loss(already).is_same(already));
}

/// Mean loss of the first and of the last 5 of 60 steps; and the steps that were skipped.
struct Curve {
  double first = 0, last = 0;
  int64_t skipped = 0;
};

Curve train(const std::string& model_name, const DataShape& shape, Precision precision) {
  const auto model = build_model(model_name, shape, 0);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  // A scale that overflows at first: the steps are skipped until it fits.
  LossScaler scaler = needs_loss_scale(precision) ? LossScaler({.initial = 0x1p24}) : LossScaler::none();
  torch::manual_seed(6);
  const bool text = shape.kind == DataShape::Kind::kText;
  std::vector<int64_t> sizes{16};
  sizes.insert(sizes.end(), shape.input.begin(), shape.input.end());
  const at::Tensor input = text ? at::randint(shape.num_classes, sizes, at::kLong) : at::randn(sizes);
  const at::Tensor target = text ? (input + 1).remainder(shape.num_classes) : at::arange(16, at::kLong).remainder(shape.num_classes);
  Curve curve;
  for (int step = 0; step < 60 + curve.skipped; ++step) {
    model->zero_grad();
    at::Tensor logits;
    {
      const AutocastScope scope(precision, at::kCPU);
      logits = model->forward(input);
    }
    const at::Tensor loss = cross_entropy(for_loss(logits), target);
    const int64_t done = step - curve.skipped;
    if (done < 5) curve.first += loss.item<double>() / 5;
    if (done >= 55) curve.last += loss.item<double>() / 5;
    (loss * scaler.scale()).backward();
    bool finite = true;
    for (const at::Tensor& parameter : model->parameters()) {
      parameter.mutable_grad().mul_(scaler.gradient_factor());
      finite = finite && parameter.grad().isfinite().all().item<bool>();
    }
    if (finite) optimizer.step();
    scaler.update(!finite);
    if (!finite && done < 5) curve.first -= loss.item<double>() / 5;  // the step is done again
    curve.skipped = scaler.skipped_steps();
  }
  return curve;
}

TEST_CASE("a model learns the same in fp32, bf16, and fp16 with a loss scale") {
  const DataShape pictures{DataShape::Kind::kImage, {1, 8, 8}, 4, {}}, text{DataShape::Kind::kText, {8}, 16, {}};
  const std::vector<std::pair<std::string, DataShape>> models = {{"mlp:width=32", pictures}, {"gpt:layers=1,width=16,heads=2", text}};
  for (const auto& [name, shape] : models) {
    INFO(name);
    const Curve fp32 = train(name, shape, Precision::kFp32), bf16 = train(name, shape, Precision::kBf16),
                fp16 = train(name, shape, Precision::kFp16);
    CHECK(fp16.skipped > 0);
    CHECK(fp32.skipped + bf16.skipped == 0);
    for (const Curve& curve : {fp32, bf16, fp16}) CHECK(curve.last < 0.5 * curve.first);
    // Beside the fall of the loss: its end is near 0, where relative differences say little.
    CHECK(std::abs(bf16.last - fp32.last) < 0.03 * (fp32.first - fp32.last));
    CHECK(std::abs(fp16.last - fp32.last) < 0.03 * (fp32.first - fp32.last));
    CHECK(bf16.last != fp32.last);
  }
}

/// The same for the perceptron on two ranks whose gradients are compressed.
Curve train_compressed(const std::string& compress, Precision precision) {
  Curve curve;
  run_thread_ranks(2, [&](Group& group) {
    const DataShape shape{DataShape::Kind::kImage, {1, 8, 8}, 4, {}};
    std::shared_ptr<LayerGraph> model;
    at::Tensor input;
    {
      const SeededDraws draws(6);
      model = build_model("mlp:width=32", shape, 0);
      input = at::randn({16, 1, 8, 8}).narrow(0, 8 * group.rank(), 8);
    }
    const at::Tensor target = at::arange(8, at::kLong).remainder(4);
    const auto strategy =
        make_strategy(*model, group, {.rule = {.kind = UpdateRule::Kind::kMomentum}, .compress = compress, .share_weights = false});
    LossScaler scaler = needs_loss_scale(precision) ? LossScaler({.initial = 0x1p24}) : LossScaler::none();
    Curve mine;
    for (int64_t done = 0; done < 60;) {
      strategy->zero_grad();
      strategy->set_gradient_factor(scaler.gradient_factor());
      at::Tensor logits;
      {
        const AutocastScope scope(precision, at::kCPU);
        logits = model->forward(input);
      }
      const at::Tensor loss = cross_entropy(for_loss(logits), target) / 2;
      strategy->set_control(0, loss.item<float>());
      (loss * scaler.scale()).backward();
      strategy->finish_backward();
      const StepOutcome outcome = strategy->step({.learning_rate = 0.1, .check_finite = needs_loss_scale(precision)});
      scaler.update(outcome.skipped);
      mine.skipped = scaler.skipped_steps();
      if (outcome.skipped) continue;
      if (done < 5) mine.first += strategy->control_sum(0) / 5;
      if (done >= 55) mine.last += strategy->control_sum(0) / 5;
      ++done;
    }
    if (group.rank() == 0) curve = mine;
  });
  return curve;
}

TEST_CASE("a model learns the same in fp32 and in fp16 with a loss scale where gradients are compressed") {
  for (const char* compress : {"none", "fp16", "bf16", "int8", "topk:0.1", "powersgd:2"}) {
    CAPTURE(compress);
    const Curve fp32 = train_compressed(compress, Precision::kFp32), fp16 = train_compressed(compress, Precision::kFp16);
    CAPTURE(fp32.first);
    CAPTURE(fp32.last);
    CAPTURE(fp16.last);
    CHECK(fp16.skipped > 0);
    CHECK(fp32.skipped == 0);
    CHECK(fp32.last < 0.5 * fp32.first);
    CHECK(std::abs(fp16.last - fp32.last) < 0.03 * (fp32.first - fp32.last));
    CHECK(fp16.last != fp32.last);
  }
}

}  // namespace
}  // namespace cohort
