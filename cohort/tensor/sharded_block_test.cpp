#include "cohort/tensor/sharded_block.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/randn.h>
#include <doctest/doctest.h>
#include <torch/utils.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/models/graph/recompute.h"
#include "cohort/models/graph/step_context.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/threads.h"

namespace {

using namespace cohort;

constexpr int64_t kSamples = 3, kPositions = 8;
const BlockOptions kOptions{24, 4, 20, 0.0, 6};
const StepContext kContext{7, 3, 5};

using Named = std::map<std::string, at::Tensor>;

/// Autocast to `type` on this thread, for fp32 none.
class AutocastScope {
 public:
  explicit AutocastScope(at::ScalarType type) {
    if (type == at::kFloat) return;
    at::autocast::set_autocast_dtype(at::kCPU, type);
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  ~AutocastScope() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::clear_cache();
  }
  AutocastScope(const AutocastScope&) = delete;
};

TransformerBlock whole_block(const BlockOptions& options) {
  torch::manual_seed(11);
  TransformerBlock block(options);
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : block->parameters()) parameter.add_(at::randn(parameter.sizes()) * 0.1);  // norms and biases count too
  return block;
}

at::Tensor sample_input() {
  torch::manual_seed(12);
  return at::randn({kSamples, kPositions, kOptions.width});
}

/// Output, the input's gradient and every parameter's, of a loss that weights each element differently; `positions` of the whole {first,
/// count} are what the module takes.
template <typename Block>
Named run(Block& block, const at::Tensor& x, at::ScalarType type, std::pair<int64_t, int64_t> positions = {0, kPositions}) {
  const StepContextScope step(kContext);
  const at::Tensor input = x.narrow(1, positions.first, positions.second).clone().requires_grad_();
  const at::Tensor weights = at::linspace(-1, 1, x.numel()).view_as(x).narrow(1, positions.first, positions.second);
  at::Tensor output;
  {
    const AutocastScope autocast(type);
    output = block.forward(input);
  }
  (output * weights).sum().backward();
  Named result{{"output", output.detach().to(at::kFloat)}, {"input's gradient", input.grad()}};
  for (const auto& item : block.named_parameters()) result[item.key()] = item.value().grad().to(at::kFloat);
  return result;
}

/// A block that keeps its input alone.
struct RecomputedBlock {
  ShardedTransformerBlock& block;
  at::Tensor forward(const at::Tensor& input) {
    return recompute([this](const at::Tensor& x) { return block.forward(x); }, input);
  }
  auto named_parameters() { return block.named_parameters(); }
};

/// What this rank should have of a whole result.
at::Tensor part_of(const std::string& name, const at::Tensor& whole, const std::map<std::string, ParameterShard>& shards,
                   std::pair<int64_t, int64_t> positions) {
  if (name == "output" || name == "input's gradient") return whole.narrow(1, positions.first, positions.second);
  const auto found = shards.find("b." + name);
  if (found == shards.end()) return whole;
  std::vector<at::Tensor> slices;
  for (const SliceRange& range : found->second.ranges) slices.push_back(whole.narrow(found->second.dim, range.whole, range.count));
  return at::cat(slices, found->second.dim);
}

double relative_error(const at::Tensor& got, const at::Tensor& expected) {
  return ((got - expected).norm() / expected.norm()).item<double>();
}

std::pair<int64_t, int64_t> positions_of(const Group& group, bool sequence_parallel) {
  if (!sequence_parallel) return {0, kPositions};
  return {group.rank() * kPositions / group.size(), kPositions / group.size()};
}

/// Runs the divided block on `num_ranks` ranks and compares all results with those of the whole one in fp32: within `bound`, and in half
/// precision within four times the largest error that a tensor of the whole block has.
void check_against_whole(int num_ranks, const BlockOptions& options, bool sequence_parallel, at::ScalarType type, double bound) {
  INFO(num_ranks, " ranks, dropout ", options.dropout, ", sequence parallel ", sequence_parallel, ", ", std::string(c10::toString(type)));
  const at::Tensor x = sample_input();
  TransformerBlock exact_block = whole_block(options), same_type_block = whole_block(options);
  const Named exact = run(*exact_block, x, at::kFloat), same_type = run(*same_type_block, x, type);
  double own_error = 0;  // the largest of a tensor: a part of few elements may have a small one by luck
  for (const auto& [name, value] : same_type) own_error = std::max(own_error, relative_error(value, exact.at(name)));
  TransformerBlock whole = whole_block(options);
  run_thread_ranks(num_ranks, [&](Group& group) {
    std::map<std::string, ParameterShard> shards;
    ShardedTransformerBlock block(*whole, group, sequence_parallel, "b.", shards);
    if (block.named_parameters().keys() != whole->named_parameters().keys()) fail(ErrorCode::kFailed, "names differ");
    const auto positions = positions_of(group, sequence_parallel);
    std::string wrong;  // told at the end, since the other ranks wait in the exchanges below
    for (const auto& [name, value] : run(block, x, type, positions)) {
      const at::Tensor expected = part_of(name, exact.at(name), shards, positions);
      if (value.sizes() != expected.sizes()) fail(ErrorCode::kFailed, name, ": shape ", value.sizes(), " for ", expected.sizes());
      const double error = relative_error(value, expected);
      if (!(error <= bound + 4 * own_error)) wrong += concat(name, ": error ", error, ", the whole block's at most ", own_error, "; ");
    }
    for (const auto& item : block.named_parameters()) {  // what every rank has whole is updated alike everywhere: to the bit
      if (shards.count("b." + item.key()) != 0) continue;
      at::Tensor first = item.value().grad().clone();
      group.broadcast(first, 0, item.key());
      if (!at::equal(first, item.value().grad())) wrong += item.key() + ": gradients differ between ranks; ";
    }
    if (!wrong.empty()) fail(ErrorCode::kFailed, wrong);
  });
  for (const auto& parameter : whole->parameters()) CHECK_FALSE(parameter.grad().defined());  // the divided block has its own
}

}  // namespace

TEST_CASE("sharded block: output and every gradient are the whole block's") {
  BlockOptions with_dropout = kOptions;
  with_dropout.dropout = 0.3;
  for (const int num_ranks : {1, 2, 4}) {
    for (const BlockOptions& options : {kOptions, with_dropout}) {
      for (const bool sequence_parallel : {false, true}) check_against_whole(num_ranks, options, sequence_parallel, at::kFloat, 2e-6);
    }
  }
}

TEST_CASE("sharded block: in half precision it is as exact as the whole block") {
  BlockOptions options = kOptions;
  options.dropout = 0.3;
  for (const int num_ranks : {2, 4}) {
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
      for (const bool sequence_parallel : {false, true}) check_against_whole(num_ranks, options, sequence_parallel, type, 1e-4);
    }
  }
}

TEST_CASE("sharded block: under autocast the exchanges move half of the bytes") {
  TransformerBlock whole = whole_block(kOptions);
  const at::Tensor x = sample_input();
  const auto count = [](const std::string& text, const std::string& part) {
    int result = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++result;
    return result;
  };
  for (const bool sequence_parallel : {false, true}) {
    run_thread_ranks(2, [&](Group& group) {
      std::map<std::string, ParameterShard> shards;
      ShardedTransformerBlock block(*whole, group, sequence_parallel, "b.", shards);
      run(block, x, at::kBFloat16, positions_of(group, sequence_parallel));
      const std::string calls = recent_calls(group);
      // The six whole vectors' gradients travel in their own type, and only where each rank has a term of them.
      const bool ok = count(calls, " BFloat16") == (sequence_parallel ? 8 : 4) && count(calls, " Float") == (sequence_parallel ? 1 : 0) &&
                      count(calls, "(144 Float") == (sequence_parallel ? 1 : 0);
      if (!ok) fail(ErrorCode::kFailed, calls);
    });
  }
}

TEST_CASE("sharded block: recomputed in backward it gives the same bits") {
  BlockOptions options = kOptions;
  options.dropout = 0.3;
  TransformerBlock whole = whole_block(options);
  const at::Tensor x = sample_input();
  for (const bool sequence_parallel : {false, true}) {
    run_thread_ranks(2, [&](Group& group) {
      std::map<std::string, ParameterShard> shards;
      ShardedTransformerBlock kept(*whole, group, sequence_parallel, "b.", shards), again(*whole, group, sequence_parallel, "b.", shards);
      RecomputedBlock recomputed{again};
      const auto positions = positions_of(group, sequence_parallel);
      const Named expected = run(kept, x, at::kBFloat16, positions), got = run(recomputed, x, at::kBFloat16, positions);
      for (const auto& [name, value] : expected) {
        if (!at::equal(value, got.at(name))) fail(ErrorCode::kFailed, name, " differs");
      }
    });
  }
}

TEST_CASE("sharded block: the parts are slices of the whole, put together by the shards") {
  TransformerBlock whole = whole_block(kOptions);
  whole->up->bias.set_requires_grad(false);
  whole->eval();
  run_thread_ranks(4, [&](Group& group) {
    std::map<std::string, ParameterShard> shards;
    const ShardedTransformerBlock block(*whole, group, false, "b.", shards);
    std::string names;
    for (const auto& [name, shard] : shards) names += name + shape_text(shard.local_shape()) + " ";
    if (names != "b.down.weight[24, 5] b.out.weight[24, 6] b.qkv.bias[18] b.qkv.weight[18, 24] b.up.bias[5] b.up.weight[5, 24] ") {
      fail(ErrorCode::kFailed, names);
    }
    for (const auto& item : block.named_parameters()) {
      const at::Tensor original = whole->named_parameters()[item.key()];
      if (!at::equal(item.value(), part_of(item.key(), original.detach(), shards, {}))) fail(ErrorCode::kFailed, item.key());
      if (item.value().requires_grad() != original.requires_grad() || !item.value().is_leaf()) fail(ErrorCode::kFailed, item.key());
    }
    const std::vector<SliceRange> heads{{0, 6 * group.rank(), 6}, {6, 24 + 6 * group.rank(), 6}, {12, 48 + 6 * group.rank(), 6}};
    if (shards.at("b.qkv.bias").ranges != heads) fail(ErrorCode::kFailed, "heads of rank ", group.rank());
    if (block.is_training()) fail(ErrorCode::kFailed, "evaluation mode was lost");
  });
}

TEST_CASE("sharded block: evaluation has no dropout, training without a step context is refused") {
  BlockOptions options = kOptions;
  options.dropout = 0.5;
  TransformerBlock whole = whole_block(options);
  const at::Tensor x = sample_input();
  whole->eval();
  const at::Tensor expected = whole->forward(x).detach();
  const auto body = [&](Group& group) {
    std::map<std::string, ParameterShard> shards;
    ShardedTransformerBlock block(*whole, group, false, "b.", shards);
    if (relative_error(block.forward(x).detach(), expected) > 1e-6) fail(ErrorCode::kFailed, "evaluation differs");
    block.train();
    block.forward(x);
  };
  CHECK_THROWS_WITH_AS(
      run_thread_ranks(2, body),
      "dropout in a Transformer block that is divided between 2 ranks needs a StepContextScope around forward and backward "
      "(rank 0): without one the ranks' masks would differ",
      Error);
}

TEST_CASE("sharded block: what does not divide is refused with a sentence") {
  const TransformerBlock block(BlockOptions{12, 3, 8});
  CHECK(why_not_divided(*block, 1) == "");
  CHECK(why_not_divided(*block, 3) == "its 8 hidden units do not divide by 3 ranks");
  CHECK(why_not_divided(*block, 2) == "its 3 heads do not divide by 2 ranks");
  CHECK(why_not_divided(*TransformerBlock(kOptions), 4) == "");
  const auto body = [&](Group& group) {
    std::map<std::string, ParameterShard> shards;
    const ShardedTransformerBlock refused(*block, group, false, "block1.", shards);
  };
  CHECK_THROWS_WITH_AS(run_thread_ranks(2, body), "the Transformer block block1. cannot be divided: its 3 heads do not divide by 2 ranks",
                       Error);
}
