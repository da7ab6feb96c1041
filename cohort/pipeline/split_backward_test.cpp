#include "cohort/pipeline/split_backward.h"

#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/torch.h>

#include <functional>
#include <string>

#include "cohort/base/fail.h"
#include "cohort/models/graph/recompute.h"
#include "cohort/models/layers/transformer_block.h"
#include "cohort/models/registry.h"
#include "tests/support/threads.h"

namespace cohort {
namespace {

namespace nn = torch::nn;
using Tensors = std::vector<at::Tensor>;
/// A stage: outputs from inputs.
using Stage = std::function<Tensors(const Tensors&)>;

bool same(const at::Tensor& a, const at::Tensor& b) { return a.defined() == b.defined() && (!a.defined() || at::equal(a, b)); }

/// Counts how often `.grad` of a parameter is completed.
struct CountingHook : torch::autograd::PostAccumulateGradHook {
  explicit CountingHook(int* count) : count_(count) {}
  void operator()(const at::Tensor&) override { ++*count_; }
  int* count_;
};

Tensors leaves_of(const Tensors& data) {
  Tensors leaves;
  for (const at::Tensor& one : data) leaves.push_back(one.is_floating_point() ? one.detach().clone().requires_grad_() : one);
  return leaves;
}

/// The n-th gradient of an output: like a random one, but never the same; none where `without` says so.
Tensors gradients_of(const Tensors& outputs, int n, size_t without) {
  Tensors gradients;
  for (size_t i = 0; i < outputs.size(); ++i)
    gradients.push_back(i == without ? at::Tensor() : (outputs[i].detach().to(at::kDouble) * (3.7 + n)).sin().to(outputs[i].scalar_type()));
  return gradients;
}

struct Outcome {
  std::vector<Tensors> inputs;  ///< Gradients, a micro-batch.
  Tensors weights;
  std::vector<int> num_hooks;
};

constexpr int kMicroBatches = 3;
constexpr size_t kNone = 99;

/// Three micro-batches accumulated, by backward() or by parts that interleave: I0 I1 W0 I2 W1 W2.
Outcome accumulate(const Tensors& weights, const Stage& stage, const Tensors& data, size_t without, bool split) {
  Outcome outcome;
  outcome.num_hooks.resize(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i].mutable_grad() = at::Tensor();
    torch::autograd::impl::set_post_acc_grad_hooks(weights[i], std::make_unique<CountingHook>(&outcome.num_hooks[i]));
  }
  torch::manual_seed(5);
  std::vector<Tensors> inputs, outputs;
  for (int n = 0; n < kMicroBatches; ++n) {
    Tensors shifted;
    for (const at::Tensor& one : data) shifted.push_back(one.is_floating_point() ? one + 0.1 * n : one);
    inputs.push_back(leaves_of(shifted));
    outputs.push_back(stage(inputs.back()));
  }
  outcome.inputs.resize(kMicroBatches);
  if (split) {
    std::vector<SplitBackward> parts(kMicroBatches);
    const auto input_part = [&](size_t n) {
      outcome.inputs[n] = parts[n].input_part(outputs[n], gradients_of(outputs[n], static_cast<int>(n), without), inputs[n]);
    };
    input_part(0), input_part(1), parts[0].weight_part(), input_part(2), parts[1].weight_part(), parts[2].weight_part();
    for (const Tensors& one : inputs)
      for (const at::Tensor& input : one) CHECK_FALSE(input.grad().defined());
  } else {
    for (size_t n = 0; n < kMicroBatches; ++n) {
      Tensors roots, gradients = gradients_of(outputs[n], static_cast<int>(n), without), defined;
      for (size_t i = 0; i < gradients.size(); ++i) {
        if (!gradients[i].defined() || !outputs[n][i].requires_grad()) continue;
        roots.push_back(outputs[n][i]);
        defined.push_back(gradients[i]);
      }
      if (!roots.empty()) torch::autograd::backward(roots, defined);
      for (const at::Tensor& input : inputs[n]) outcome.inputs[n].push_back(input.grad());
    }
  }
  for (const at::Tensor& weight : weights) {
    outcome.weights.push_back(weight.grad().defined() ? weight.grad().clone() : at::Tensor());
    torch::autograd::impl::set_post_acc_grad_hooks(weight, nullptr);
  }
  return outcome;
}

/// Split and whole give the same bits and run the same hooks. `late`: of how many weights the gradients come in the weight part alone; -1
/// where that is not the point.
void check_stage(const std::string& what, const Tensors& weights, const Stage& stage, const Tensors& data, int late = -1,
                 size_t without = kNone) {
  const Outcome whole = accumulate(weights, stage, data, without, false), split = accumulate(weights, stage, data, without, true);
  for (size_t i = 0; i < weights.size(); ++i) {
    CHECK_MESSAGE(same(split.weights[i], whole.weights[i]), concat(what, ": weight ", i));
    CHECK_MESSAGE(split.num_hooks[i] == whole.num_hooks[i], concat(what, ": hooks of weight ", i));
  }
  for (size_t n = 0; n < whole.inputs.size(); ++n)
    for (size_t i = 0; i < data.size(); ++i)
      CHECK_MESSAGE(same(split.inputs[n][i], whole.inputs[n][i]), concat(what, ": micro-batch ", n, ", input ", i));
  if (late < 0) return;
  const Tensors inputs = leaves_of(data), outputs = stage(inputs);
  for (const at::Tensor& weight : weights) weight.mutable_grad() = at::Tensor();
  SplitBackward split_backward;
  split_backward.input_part(outputs, gradients_of(outputs, 0, without), inputs);
  int num_late = 0;
  for (const at::Tensor& weight : weights) num_late += weight.grad().defined() ? 0 : 1;
  CHECK_MESSAGE(num_late == late, what);
  split_backward.weight_part();
}

/// Of a module with one input and output.
template <typename Holder>
void check_module(const std::string& what, Holder module, const at::Tensor& data, int late = -1) {
  check_stage(what, module->parameters(), [&](const Tensors& in) { return Tensors{module->forward(in[0])}; }, {data}, late);
}

TEST_CASE("both parts together are one backward(), bit for bit, and weights wait for theirs") {
  torch::manual_seed(1);
  const at::Tensor row = torch::randn({5, 6, 16}), flat = torch::randn({7, 16}), image = torch::randn({4, 3, 9, 9});
  check_module("linear chain", nn::Sequential(nn::Linear(16, 8), nn::GELU(), nn::Linear(nn::LinearOptions(8, 5).bias(false)), nn::Tanh()),
               flat, 3);
  check_module("linear of three dimensions", nn::Sequential(nn::Linear(16, 8), nn::GELU(), nn::LayerNorm(nn::LayerNormOptions({8}))), row,
               4);
  check_module(
      "convolutions",
      nn::Sequential(nn::Conv2d(3, 4, 3), nn::BatchNorm2d(4), nn::ReLU(), nn::Conv2d(nn::Conv2dOptions(4, 4, 3).groups(2).stride(2)),
                     nn::GroupNorm(2, 4), nn::MaxPool2d(2), nn::Flatten(), nn::Linear(4, 3)),
      image, 10);
  check_module("transformer block", TransformerBlock(BlockOptions{.width = 16, .heads = 2, .ff = 24, .dropout = 0.1}), row, 12);
  nn::LSTM lstm(nn::LSTMOptions(16, 7).batch_first(true));
  check_stage("lstm", lstm->parameters(), [&](const Tensors& in) { return Tensors{std::get<0>(lstm->forward(in[0]))}; }, {row});
  check_module("no weights", nn::Sequential(nn::ReLU(), nn::Tanh()), flat, 0);
}

TEST_CASE("a first stage, and layers that no input's gradient passes") {
  torch::manual_seed(1);
  const at::Tensor ids = torch::randint(0, 20, {3, 5}), row = torch::randn({3, 5, 8});
  ByteEmbedding embedding(20, 8, 5);
  check_stage("first stage", embedding->parameters(), [&](const Tensors& in) { return Tensors{embedding->forward(in[0])}; }, {ids}, 2);
  nn::Linear side(8, 8);
  Tensors weights = embedding->parameters();
  for (const at::Tensor& weight : side->parameters()) weights.push_back(weight);
  check_stage(
      "a sum of stream and embedding", weights,
      [&](const Tensors& in) { return Tensors{side->forward(embedding->forward(in[0])) + in[1].sin() * embedding->forward(in[0])}; },
      {ids, row}, 0);  // One sum with three paths to the tables; `side` lies on one of them.
  check_stage(
      "an output without a path to an input", weights,
      [&](const Tensors& in) { return Tensors{side->forward(in[1]), embedding->forward(in[0]).cos()}; }, {ids, row}, 4);
}

TEST_CASE("weights that are shared, frozen, parametrised or outputs themselves") {
  torch::manual_seed(1);
  const at::Tensor row = torch::randn({6, 8});
  nn::Linear first(8, 8), second(8, 8);
  const Tensors weights{first->weight, first->bias, second->weight, second->bias};
  const auto stage = [](auto f) { return [f](const Tensors& in) { return Tensors{f(in[0])}; }; };
  check_stage("tied", weights, stage([&](const at::Tensor& x) { return second->forward(first->forward(x).tanh()).matmul(first->weight); }),
              {row}, 2);
  check_stage("used twice", weights, stage([&](const at::Tensor& x) { return first->forward(first->forward(second->forward(x)).tanh()); }),
              {row}, 2);
  check_stage("residual", weights,
              stage([&](const at::Tensor& x) { return x + first->forward(x) + second->forward((x + first->forward(x)).tanh()); }), {row},
              2);
  check_stage("shared through a common product", weights, stage([&](const at::Tensor& x) {
                const at::Tensor product = first->weight.matmul(second->weight);
                return at::linear(at::linear(x, product).sin(), product, second->bias) + first->bias;
              }),
              {row}, 1);  // first->bias has a sum of its own; second->bias shares its operator with the product.
  check_stage("weight norm", weights,
              stage([&](const at::Tensor& x) { return at::linear(x, first->weight * (first->bias / first->weight.norm())).cos(); }), {row},
              4);
  check_stage("weight of one operator twice", weights,
              stage([&](const at::Tensor& x) { return at::addcmul(x.sin(), first->bias, first->bias); }), {row}, 4);
  check_stage(
      "a weight handed out", weights, [&](const Tensors& in) { return Tensors{first->forward(in[0]), second->bias, second->bias * 2}; },
      {row}, 4);
  first->weight.requires_grad_(false);
  check_stage("frozen", {first->bias, second->weight, second->bias},
              stage([&](const at::Tensor& x) { return second->forward(first->forward(x).tanh()); }), {row}, 3);
}

TEST_CASE("several outputs and inputs: undefined gradients, outputs that are inputs, inputs used twice or not at all") {
  torch::manual_seed(1);
  const at::Tensor row = torch::randn({6, 8});
  nn::Linear first(8, 8), second(8, 8);
  Tensors weights = first->parameters();
  for (const at::Tensor& weight : second->parameters()) weights.push_back(weight);
  const Stage stage = [&](const Tensors& in) {
    const at::Tensor shared = first->forward(in[0]).tanh();
    return Tensors{second->forward(shared) + in[0], in[1], shared.sin(), in[0], torch::arange(3), in[1].detach()};
  };
  const Tensors data{row, torch::randn({2, 3}), torch::randn({2}), torch::arange(4)};
  for (const size_t without : {kNone, size_t{0}, size_t{1}, size_t{2}, size_t{3}})
    check_stage(concat("without gradient ", without), weights, stage, data, without == 0 ? 4 : without == kNone ? 4 : -1, without);
  SplitBackward split;
  CHECK_FALSE(split.input_part({row, torch::arange(2)}, {row, at::Tensor()}, {row})[0].defined());  // Nothing to do.
  split.weight_part();
  split.weight_part();
  const at::Tensor x = row.clone().requires_grad_();
  const Tensors twice = split.input_part({x * 2}, {row}, {x, x});
  CHECK(same(twice[0], row * 2));
  CHECK(same(twice[1], row * 2));
}

TEST_CASE("autocast") {
  torch::manual_seed(1);
  TransformerBlock block(BlockOptions{.width = 16, .heads = 2, .ff = 24});
  const auto stage = [&](const Tensors& in) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
    Tensors out{block->forward(in[0])};
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    return out;
  };
  check_stage("bf16", block->parameters(), stage, {torch::randn({3, 4, 16})}, 12);
}

struct Doubled : torch::autograd::Function<Doubled> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& a, const at::Tensor& b) { return 2 * a + 2 * b; }
  static Tensors backward(torch::autograd::AutogradContext*, const Tensors& gradients) {
    ++num_runs;
    return {2 * gradients[0], 2 * gradients[0]};
  }
  static inline int num_runs = 0;
};

TEST_CASE("recomputed layers and custom functions run once, in the input part; where no input's gradient passes in the weight part") {
  torch::manual_seed(1);
  nn::Linear first(8, 8), second(8, 8);
  Tensors weights = first->parameters();
  for (const at::Tensor& weight : second->parameters()) weights.push_back(weight);
  const at::Tensor row = torch::randn({6, 8});
  int num_runs = 0;
  const auto recomputed = [&](const at::Tensor& x) {
    return recompute([&](const at::Tensor& t) { return (++num_runs, at::dropout(first->forward(t).tanh(), 0.3, true)); }, x);
  };
  check_stage("recompute", weights, [&](const Tensors& in) { return Tensors{second->forward(recomputed(in[0])) + in[0]}; }, {row}, 2);
  CHECK(num_runs == 2 * (2 * kMicroBatches + 1));
  check_stage(
      "recompute in a first stage", weights, [&](const Tensors& in) { return Tensors{second->forward(recomputed(row)) + in[0]}; },
      {torch::arange(8)}, 4);
  Doubled::num_runs = 0;
  check_stage(
      "own function", weights, [&](const Tensors& in) { return Tensors{Doubled::apply(second->forward(in[0]), first->bias)}; }, {row}, 3);
  CHECK(Doubled::num_runs == 2 * kMicroBatches + 1);
}

TEST_CASE("hooks of weights run once on the whole gradient, those of activations change both parts alike") {
  torch::manual_seed(1);
  nn::Linear first(8, 8), second(8, 8);
  Tensors weights = first->parameters();
  for (const at::Tensor& weight : second->parameters()) weights.push_back(weight);
  for (const at::Tensor& weight : weights) weight.register_hook([](const at::Tensor& gradient) { return gradient * 0.25; });
  const Stage stage = [&](const Tensors& in) {
    const at::Tensor hidden = first->forward(in[0]);
    hidden.register_hook([](const at::Tensor& gradient) { return gradient * 3; });
    return Tensors{first->forward(second->forward(hidden))};
  };
  check_stage("hooks", weights, stage, {torch::randn({6, 8})}, 2);
}

/// Operators that start while it lives, in backward only.
class Counter {
 public:
  Counter() {
    counts().clear();
    handle_ =
        at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& f) -> std::unique_ptr<at::ObserverContext> {
                                     ++counts()[f.name()];
                                     return nullptr;
                                   }).scopes({at::RecordScope::FUNCTION}));
  }
  ~Counter() { at::removeCallback(handle_); }
  static std::map<std::string, int>& counts() {
    static std::map<std::string, int> all;
    return all;
  }

 private:
  at::CallbackHandle handle_;
};

TEST_CASE("no product is computed twice, and none for a weight in the input part") {
  torch::manual_seed(1);
  TransformerBlock block(BlockOptions{.width = 16, .heads = 2, .ff = 24});
  const at::Tensor data = torch::randn({3, 4, 16});
  const auto products = [&](bool split, bool weights_too) {
    const Tensors inputs = leaves_of({data}), outputs{block->forward(inputs[0])}, gradients{torch::ones_like(outputs[0])};
    const Counter counter;
    if (split) {
      SplitBackward parts;
      parts.input_part(outputs, gradients, inputs);
      if (weights_too) parts.weight_part();
    } else {
      torch::autograd::backward(outputs, gradients);
    }
    return Counter::counts()["aten::mm"];
  };
  CHECK(products(false, true) == 8);  // Four layers, input and weight.
  CHECK(products(true, true) == 8);
  CHECK(products(true, false) == 4);
}

TEST_CASE("activations that weights do not need are free after the input part, all after the weight part") {
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> watched;
  const auto watch = [&](at::Tensor tensor) {
    watched.emplace_back(tensor.getIntrusivePtr());
    return tensor;
  };
  const auto alive = [&] {
    std::vector<bool> now;
    for (const auto& one : watched) now.push_back(!one.expired());
    return now;
  };
  nn::Linear first(8, 8), second(8, 8);
  const at::Tensor x = torch::randn({4, 8}).requires_grad_();
  Tensors outputs{second->forward(watch(watch(first->forward(x)).sin()))};  // sin() keeps its input, the linear layer the result.
  SplitBackward split;
  CHECK(alive() == std::vector<bool>{true, true});
  split.input_part(outputs, {torch::ones({4, 8})}, {x});
  CHECK(alive() == std::vector<bool>{false, true});
  CHECK_THROWS_WITH_AS(split.input_part(outputs, {torch::ones({4, 8})}, {x}), doctest::Contains("again before weight_part()"), Error);
  split.weight_part();
  CHECK(alive() == std::vector<bool>{false, false});
}

TEST_CASE("nothing is left over from a thousand micro-batches") {
  nn::Linear first(4, 4), second(4, 4);
  std::vector<c10::weak_intrusive_ptr<torch::autograd::Node>> nodes;
  for (int repeat = 0; repeat < 1000; ++repeat) {
    SplitBackward split;
    const at::Tensor x = torch::ones({2, 4}).requires_grad_();
    const at::Tensor y = second->forward(first->forward(second->forward(x)).sin());
    nodes.emplace_back(y.grad_fn());
    nodes.emplace_back(y.grad_fn()->next_edge(1).function);
    split.input_part({y}, {torch::ones({2, 4})}, {x});
    if (repeat % 2 == 0) split.weight_part();
  }
  CHECK(std::all_of(nodes.begin(), nodes.end(), [](const auto& node) { return node.expired(); }));
}

TEST_CASE("a weight that is used twice in the last micro-batch alone gets the sums of the others first") {
  torch::manual_seed(1);
  nn::Linear layer(8, 8);
  // Groups of 4 rows, as ghost batch norm takes them.
  const Stage stage = [&](const Tensors& in) {
    Tensors groups;
    for (const at::Tensor& group : in[0].split(4)) groups.push_back(layer->forward(group).tanh());
    return Tensors{at::cat(groups)};
  };
  std::vector<Tensors> inputs, outputs;
  for (const int64_t rows : {4, 3, 6}) inputs.push_back(leaves_of({torch::randn({rows, 8})}));
  const auto forward = [&] {
    layer->zero_grad();
    outputs.clear();
    for (const Tensors& one : inputs) outputs.push_back(stage(one));
  };
  forward();
  for (size_t n = 0; n < outputs.size(); ++n) torch::autograd::backward(outputs[n], gradients_of(outputs[n], static_cast<int>(n), kNone));
  const at::Tensor whole = layer->weight.grad().clone();
  forward();
  std::vector<SplitBackward> parts(outputs.size());
  std::vector<const SplitBackward*> before;
  for (size_t n = 0; n < outputs.size(); ++n) {
    parts[n].input_part(outputs[n], gradients_of(outputs[n], static_cast<int>(n), kNone), inputs[n], before);
    before.push_back(&parts[n]);
  }
  CHECK_FALSE(layer->weight.grad().defined());
  for (SplitBackward& part : parts) part.weight_part();
  CHECK(same(layer->weight.grad(), whole));
}

TEST_CASE("misuse is refused") {
  SplitBackward split;
  const at::Tensor x = torch::ones({2}).requires_grad_(), y = x * 2;
  CHECK_THROWS_WITH_AS(split.input_part({y}, {}, {x}), doctest::Contains("1 outputs but 0 gradients"), Error);
  CHECK_THROWS_WITH_AS(split.input_part({y * 2}, {x}, {y}), doctest::Contains("input 0 of 1, of shape [2]"), Error);
  CHECK(same(split.input_part({y}, {torch::ones({2})}, {x})[0], torch::full({2}, 2.0)));  // Still of use.
}

}  // namespace
}  // namespace cohort
