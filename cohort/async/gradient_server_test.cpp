#include "cohort/async/gradient_server.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>
#include <torch/nn/module.h>

#include "cohort/async/packed_tensors.h"
#include "cohort/base/error.h"
#include "tests/support/compressor_inputs.h"

namespace cohort {
namespace {

constexpr const char* kCodes[] = {"fp16", "bf16", "int8"};

std::vector<NamedTensor> parameters() {
  return {{"weight", at::zeros({70, 9})}, {"bias", at::zeros({7})}, {"exact", at::zeros({5}, at::kDouble)}, {"none", at::zeros({0})}};
}

std::vector<at::Tensor> gradients_of(int worker, int64_t push) {
  return {test_gradient(1, worker, push, 630).view({70, 9}), test_gradient(2, worker, push, 7),
          test_gradient(3, worker, push, 5).to(at::kDouble), at::zeros({0})};
}

double largest(const at::Tensor& tensor) { return tensor.numel() == 0 ? 0 : tensor.abs().max().item<double>(); }

at::Tensor flat_floats(const std::vector<at::Tensor>& gradients) {
  at::Tensor out = at::zeros({637}, at::kFloat);
  if (gradients[0].defined()) out.narrow(0, 0, 630).copy_(gradients[0].view({630}));
  if (gradients[1].defined()) out.narrow(0, 630, 7).copy_(gradients[1]);
  return out;
}

TEST_CASE("pushes and residual add up to the sum of the gradients, for each worker") {
  for (const char* name : kCodes) {
    CAPTURE(name);
    const PushCodec code(name, parameters());
    for (const int worker : {0, 1}) {
      const at::Tensor residual = code.empty_residual();
      std::vector<at::Tensor> memory;
      at::Tensor all = at::zeros({637}, at::kDouble), applied = all.clone();
      for (int64_t push = 0; push < 30; ++push) {
        std::vector<at::Tensor> gradients = gradients_of(worker, push);
        if (push % 3 == 1) gradients[1] = at::Tensor();  // A parameter without a gradient: nothing is sent, and its residual stays.
        const at::Tensor bias_left_out = residual.narrow(0, 630, 7).clone();
        const std::vector<at::Tensor> codes = code.encode(gradients, residual), got = code.decode(codes, memory);
        CHECK(got[1].defined() == gradients[1].defined());
        if (!gradients[1].defined()) CHECK(at::equal(residual.narrow(0, 630, 7), bias_left_out));
        CHECK(at::equal(got[2], gradients[2]));
        all += flat_floats(gradients).to(at::kDouble);
        applied += flat_floats(got).to(at::kDouble);
      }
      CHECK(largest(residual) > 0);
      CHECK(largest(all - applied) > 1e-6);  // So the residual is needed.
      CHECK(largest(all - applied - residual.to(at::kDouble)) < 2e-6);
    }
  }
}

TEST_CASE("codes have the announced bytes and tensors") {
  for (const auto& [name, bytes] :
       {std::pair("fp16", 2 * 637 + 40), std::pair("bf16", 2 * 637 + 40), std::pair("int8", 630 + 12 + 2 + 8 + 4 + 40)}) {
    CAPTURE(name);
    const PushCodec code(name, parameters());
    const at::Tensor residual = code.empty_residual();
    const std::vector<at::Tensor> codes = code.encode(gradients_of(0, 0), residual), like = code.empty_codes();
    CHECK(code.num_bytes() == bytes);
    CHECK(packed_bytes(codes) == bytes);
    for (size_t i = 0; i < codes.size(); ++i) {
      CHECK((codes[i].sizes() == like[i].sizes()));
      CHECK((codes[i].scalar_type() == like[i].scalar_type()));
    }
  }
  CHECK(!PushCodec::of("none", parameters()));
  for (const char* no : {"topk:0.1", "powersgd:2", "none", "int9"}) CHECK_THROWS_AS(PushCodec(no, parameters()), Error);
}

struct Line : torch::nn::Module {
  Line() { weight = register_parameter("weight", at::zeros({300})); }
  at::Tensor weight;
};

TEST_CASE("a server with compressed pushes moves by what was sent") {
  for (const char* name : kCodes) {
    CAPTURE(name);
    Line line, exact;
    GradientServer server(line, {.rule = {}, .global_batch = 4, .compress = name});
    GradientServer plain(exact, {.rule = {}, .global_batch = 4});
    CHECK(server.push_bytes() < plain.push_bytes() / 2 + 1);
    CHECK(server.pull_bytes() == plain.pull_bytes());
    const StepNumbers numbers{.learning_rate = 1};
    for (int64_t round = 0; round < 20; ++round) {
      std::vector<Assignment> works;
      for (const int worker : {0, 1}) {
        for (GradientServer* each : {&server, &plain}) {
          Assignment& work = works.emplace_back(Assignment{.item = {round, worker, {0, 3}, 4}, .worker = worker});
          each->pull(work);
          each->prepare_push(work, {.loss = 1, .gradients = {test_gradient(5, worker, round, 300)}, .buffers = {}}, numbers);
        }
      }
      for (const size_t at : {size_t{0}, size_t{2}})
        CHECK(server.push(works[at], numbers).staleness == plain.push(works[at + 1], numbers).staleness);
    }
    // Plain SGD: the weights differ by the residuals.
    at::Tensor left_out = at::zeros({300});
    for (FlatPiece& piece : server.saved_pieces())
      if (piece.name.starts_with("async/residual/")) left_out += piece.values;
    CHECK(largest(left_out) > 1e-6);
    CHECK(largest(line.weight.detach() - left_out - exact.weight.detach()) < 1e-5);
  }
}

}  // namespace

}  // namespace cohort
