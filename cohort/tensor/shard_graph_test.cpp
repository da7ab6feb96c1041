#include "cohort/tensor/shard_graph.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <doctest/doctest.h>
#include <torch/nn/modules.h>
#include <torch/nn/options.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/models/graph/step_context.h"
#include "cohort/models/layers/dropout.h"
#include "cohort/models/registry.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/tensor/collective_ops.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/threads.h"

namespace cohort {
namespace {

using GraphPointer = std::shared_ptr<LayerGraph>;

const DataShape kImages{DataShape::Kind::kImage, {3, 9, 8}, 12, {}};
const DataShape kWideImages{DataShape::Kind::kImage, {3, 16, 16}, 10, {}};
const DataShape kText{DataShape::Kind::kText, {12}, 48, {}};

void expect(bool condition, const std::string& what) {
  if (!condition) fail(ErrorCode::kFailed, what);
}

struct Sample {
  at::Tensor input, target;
};

Sample sample_of(const DataShape& data, int64_t samples) {
  torch::manual_seed(21);
  if (data.kind == DataShape::Kind::kText) {
    return {at::randint(data.num_classes, {samples, data.input[0]}, at::kLong),
            at::randint(data.num_classes, {samples, data.input[0]}, at::kLong)};
  }
  return {at::randn({samples, data.input[0], data.input[1], data.input[2]}, at::kDouble),
          at::randint(data.num_classes, {samples}, at::kLong)};
}

at::Tensor whole_loss(const at::Tensor& logits, const at::Tensor& target) {
  return at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), target.reshape({-1}));
}

/// The part of a whole tensor that the shard describes.
at::Tensor part_of(const at::Tensor& whole, const ParameterShard& shard) {
  std::vector<at::Tensor> parts;
  for (const SliceRange& range : shard.ranges) parts.push_back(whole.narrow(shard.dim, range.whole, range.count));
  return at::cat(parts, shard.dim);
}

at::Tensor part_of(const at::Tensor& whole, const ShardedModel& sharded, const std::string& name) {
  const auto found = sharded.shards.find(name);
  return found == sharded.shards.end() ? whole : part_of(whole, found->second);
}

/// Compares `mine` with this rank's part of `whole`, name by name. Empty `value`s (no gradient) must be so on both sides.
void compare(const std::string& what, const std::vector<NamedTensor>& mine, const std::vector<NamedTensor>& whole,
             const ShardedModel& sharded, double tolerance, const std::function<at::Tensor(const at::Tensor&)>& value) {
  expect(mine.size() == whole.size(), what + ": another number of tensors");
  for (size_t i = 0; i < mine.size(); ++i) {
    expect(mine[i].name == whole[i].name, concat(what, ": ", mine[i].name, " is not ", whole[i].name));
    const at::Tensor actual = value(mine[i].tensor), all = value(whole[i].tensor);
    expect(actual.defined() == all.defined(), concat(what, " of ", mine[i].name, ": defined on one side alone"));
    if (!all.defined()) continue;
    const at::Tensor expected = part_of(all, sharded, mine[i].name);
    expect(actual.sizes() == expected.sizes(),
           concat(what, " of ", mine[i].name, " has shape ", actual.sizes(), ", not ", expected.sizes()));
    const bool equal = tolerance == 0 ? at::equal(actual, expected) : at::allclose(actual, expected, tolerance, tolerance);
    expect(equal, concat(what, " of ", mine[i].name, " differs by ", (actual - expected).abs().max().item<double>()));
  }
}

/// Tensors that are whole must have the same bits on all ranks.
void expect_same_bits(const std::vector<NamedTensor>& tensors, const ShardedModel& sharded, Group group,
                      const std::function<at::Tensor(const at::Tensor&)>& value) {
  for (const NamedTensor& named : tensors) {
    const at::Tensor mine = value(named.tensor);
    if (!mine.defined() || sharded.shards.contains(named.name)) continue;
    std::vector<int64_t> shape = mine.sizes().vec();
    shape.insert(shape.begin(), group.size());
    at::Tensor all = at::empty(shape, mine.options());
    group.all_gather(all, mine.contiguous(), named.name);
    for (int rank = 1; rank < group.size(); ++rank) expect(at::equal(all[rank], all[0]), "other bits on another rank: " + named.name);
  }
}

at::Tensor gradient(const at::Tensor& tensor) { return tensor.grad(); }
at::Tensor itself(const at::Tensor& tensor) { return tensor.detach(); }

void sgd_step(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& parameter : module.parameters(/*recurse=*/true)) {
    if (parameter.grad().defined()) parameter.data().sub_(parameter.grad(), 0.1);
  }
}

struct Options {
  int64_t samples = 6;
  bool sequence_parallel = false, train = true;
  double tolerance = 1e-9;
};

/// One training step of a model that `build` makes: the whole one here, its parts on `num_ranks` thread ranks. Returns rank 0's outcome.
ShardedModel check_step(const std::string& label, const std::function<GraphPointer()>& build, const Sample& sample, int num_ranks,
                        const Options& options = {}) {
  std::vector<GraphPointer> parts;
  for (int rank = 0; rank < num_ranks; ++rank) parts.push_back(build());
  const GraphPointer initial = build(), whole = build();
  const StepContext context{.seed = 5, .step = 2, .first_sample = 3};
  at::Tensor logits, loss;
  whole->train(options.train);
  {
    const StepContextScope scope(context);
    logits = whole->forward(sample.input);
    loss = whole_loss(logits, sample.target);
    loss.backward();
  }
  sgd_step(*whole);
  ShardedModel outcome;
  run_thread_ranks(num_ranks, [&](Group& group) {
    const std::string where = concat(label, " on rank ", group.rank(), " of ", num_ranks, ": ");
    LayerGraph& graph = *parts[static_cast<size_t>(group.rank())];
    const ShardedModel sharded = shard_graph(graph, group, {.sequence_parallel = options.sequence_parallel});
    graph.train(options.train);
    compare(where + "initial value", distinct_parameters(graph), distinct_parameters(*initial), sharded, 0, itself);
    const StepContextScope scope(context);
    const at::Tensor mine = graph.forward(sample.input);
    const at::Tensor my_loss = sharded.logits_divided ? divided_cross_entropy(mine, sample.target, group) : whole_loss(mine, sample.target);
    my_loss.backward();
    const at::Tensor joined = sharded.logits_divided ? gather_from_ranks(mine.detach(), -1, group) : mine;
    const double bound = options.tolerance;
    expect(at::allclose(joined, logits, bound, bound), where + "the logits differ");
    expect(at::allclose(my_loss, loss, bound, bound), where + "the loss differs");
    compare(where + "gradient", distinct_parameters(graph), distinct_parameters(*whole), sharded, bound, gradient);
    expect_same_bits(distinct_parameters(graph), sharded, group, gradient);
    sgd_step(graph);
    compare(where + "new value", distinct_parameters(graph), distinct_parameters(*whole), sharded, bound, itself);
    compare(where + "buffer", distinct_buffers(graph), distinct_buffers(*whole), sharded, bound, itself);
    if (group.rank() == 0) outcome = sharded;
  });
  return outcome;
}

ShardedModel check_family(const std::string& specification, const DataShape& data, int num_ranks, const Options& options = {}) {
  const auto build = [&] {
    GraphPointer graph = build_model(specification, data, 7);
    graph->to(at::kDouble);
    return graph;
  };
  return check_step(specification, build, sample_of(data, options.samples), num_ranks, options);
}

/// "name placement" of each layer but those that are plain "whole" or "divided".
std::string table(const ShardedModel& sharded) {
  std::string text;
  for (const LayerPlacement& each : sharded.placements) {
    if (each.placement != "divided" && (each.placement != "whole" || !each.reason.empty()))
      text += (text.empty() ? "" : "; ") + each.layer + " " + each.placement;
  }
  return text;
}

std::string reason_of(const ShardedModel& sharded, const std::string& layer) {
  for (const LayerPlacement& each : sharded.placements) {
    if (each.layer == layer) return each.reason;
  }
  return "no such layer";
}

TEST_CASE("fc: hidden layers in pairs of column and row; logits by classes where the pairs end") {
  CHECK(table(check_family("fc:hidden=24,layers=3", kImages, 2)) == "hidden1 column; hidden2 row; hidden3 column; output row");
  CHECK(table(check_family("fc:hidden=24,layers=3", kImages, 3)) == "hidden1 column; hidden2 row; hidden3 column; output row");
  const ShardedModel even = check_family("fc:hidden=24,layers=2", kImages, 4);
  CHECK(table(even) == "hidden1 column; hidden2 row; output outputs");
  CHECK(even.logits_divided);
  CHECK(table(check_family("fc:layers=0", kImages, 2)) == "output outputs");
}

TEST_CASE("what does not divide stays whole and says so; what divides around it is gathered") {
  // 25 hidden units: neither side of hidden2 divides by 3; 216 inputs of hidden1 do.
  const ShardedModel odd = check_family("fc:hidden=25,layers=2", kImages, 3);
  CHECK(table(odd) == "hidden1 row; hidden2 whole; output outputs");
  CHECK(reason_of(odd, "hidden2") == "neither its 25 outputs nor its 25 inputs can be divided by 3 ranks");
  const ShardedModel none = check_family("fc:hidden=25,layers=1", {DataShape::Kind::kImage, {1, 11, 11}, 7, {}}, 2);
  CHECK(table(none) == "hidden1 whole; output whole");
  CHECK(none.shards.empty());
  CHECK_FALSE(none.logits_divided);
}

TEST_CASE("cnn: channels out and in, then column and row") {
  for (const int num_ranks : {2, 3, 4}) {
    const ShardedModel cnn = check_family("cnn:conv1=12,conv2=6,hidden=24", kImages, num_ranks);
    CHECK(table(cnn) == "conv1 channels out; conv2 channels in; hidden column; output row");
    CHECK(cnn.shards.at("conv1.weight").local_shape() == std::vector<int64_t>{12 / num_ranks, 3, 5, 5});
    CHECK(cnn.shards.at("conv2.weight").local_shape() == std::vector<int64_t>{6, 12 / num_ranks, 5, 5});
    CHECK_FALSE(cnn.shards.contains("conv2.bias"));
  }
  // 5 channels do not divide by 3: the 3 colours do, and flattened channels stay in blocks.
  CHECK(table(check_family("cnn:conv1=5,conv2=6,hidden=9", kImages, 3)) ==
        "conv1 channels in; conv2 channels out; hidden row; output outputs");
}

TEST_CASE("resnet8: sums of a divided and a whole branch, shortcuts that need whole channels") {
  for (const int num_ranks : {2, 3, 4}) check_family("resnet8:width=12", kImages, num_ranks);
  const ShardedModel two = check_family("resnet8:width=4", kWideImages, 2);
  CHECK(table(two) ==
        "stem channels out; block1_conv1 channels in; block1_conv2 channels out; block2_shortcut whole; block2_conv1 channels out; "
        "block2_conv2 channels in; block3_shortcut whole; block3_conv1 channels out; block3_conv2 channels in; output outputs");
  CHECK(reason_of(two, "block2_shortcut") == "there is no rule for layers of kind 'shortcut'");
}

TEST_CASE("normalisation of divided channels: group, batch and ghost, with their statistics") {
  for (const int num_ranks : {2, 4}) {
    // Group norm with 3 channels a group: one value a group, as narrower layers have it at the end, would be zero but for rounding.
    for (const char* norm : {"group,width=12", "batch,width=4", "ghost,ghost=3,width=4"}) {
      const std::string model = concat("vgg11:hidden=12,norm=", norm);
      const ShardedModel trained = check_family(model, kWideImages, num_ranks);
      CHECK(trained.shards.contains("norm1.running_mean") == (norm[0] != 'g' || norm[1] != 'r'));
      if (num_ranks == 2) check_family(model, kWideImages, num_ranks, {.train = false});
    }
  }
  check_family("vgg11:width=6,hidden=12,norm=batch", kWideImages, 3);
  check_family("resnet50:width=4,blocks=1-2,norm=batch", kWideImages, 2);
  check_family("resnet50:width=4,blocks=1-1,ghost=4", kWideImages, 4);
  // 3 channels, so 1 group: it does not divide by 3.
  const ShardedModel groups = check_family("vgg11:width=3,hidden=12,norm=group", kImages, 3);
  CHECK(reason_of(groups, "norm1") == "its 1 groups do not divide by 3 ranks");
}

TEST_CASE("vgg11 and its dropout, whose mask is that of the whole layer") {
  for (const int num_ranks : {2, 3}) check_family("vgg11:width=3,hidden=12,dropout=0.4", kImages, num_ranks);
}

TEST_CASE("lstm: the embedding by vocabulary, the recurrent layer whole") {
  const ShardedModel lstm = check_family("lstm:width=6,hidden=10,dropout=0.3", kText, 3);
  CHECK(table(lstm) == "embedding vocabulary; lstm whole; output outputs");
  CHECK(reason_of(lstm, "lstm") == "there is no rule for layers of kind 'lstm'");
  CHECK(lstm.logits_divided);
}

TEST_CASE("transformer: tied and not, positions whole and divided") {
  for (const int num_ranks : {2, 3, 4}) {
    for (const bool sequence_parallel : {false, true}) {
      for (const char* extra : {"", ",tied=1", ",dropout=0.2"}) {
        const ShardedModel model = check_family(concat("transformer:width=24,heads=12", extra), kText, num_ranks,
                                                {.samples = 3, .sequence_parallel = sequence_parallel});
        CHECK(model.logits_divided);
        CHECK(model.sequence_reason.empty());
        CHECK(model.placements.back().placement == "outputs");
      }
    }
  }
}

TEST_CASE("tied tables stay one tensor, and stay whole together where they do not divide") {
  const ShardedModel tied = check_family("transformer:width=24,heads=6,layers=1,tied=1", kText, 2);
  CHECK((tied.shards.at("output.weight").ranges == tied.shards.at("embedding.token.weight").ranges));
  const ShardedModel odd = check_family("transformer:width=24,heads=6,layers=1,tied=1", {DataShape::Kind::kText, {12}, 49, {}}, 2);
  CHECK(table(odd) == "embedding whole; block1 heads; output whole");
  CHECK_FALSE(odd.logits_divided);
  // Untied, the output layer divides its inputs instead.
  CHECK(table(check_family("transformer:width=24,heads=6,layers=1", {DataShape::Kind::kText, {12}, 49, {}}, 2)) ==
        "embedding whole; block1 heads; output row");
}

TEST_CASE("sequence parallel: falls back with a reason, or where a block does not divide") {
  const DataShape eleven{DataShape::Kind::kText, {11}, 48, {}};
  const ShardedModel odd = check_family("transformer:width=8,heads=2", eleven, 2, {.samples = 3, .sequence_parallel = true});
  CHECK(odd.sequence_reason == "11 positions do not divide by 2 ranks");
  const ShardedModel lstm = check_family("lstm:width=6,hidden=10", kText, 2, {.sequence_parallel = true});
  CHECK(lstm.sequence_reason == "no embedding of this model says how many positions there are");
  // Heads that do not divide: the blocks are whole, so positions are joined in front of them.
  const ShardedModel whole_blocks =
      check_family("transformer:width=9,heads=3,layers=2", kText, 2, {.samples = 3, .sequence_parallel = true});
  CHECK(reason_of(whole_blocks, "block1") != "");
  // Vocabulary and width that do not divide: the last norm's positions are joined by plain gathering.
  const DataShape prime{DataShape::Kind::kText, {12}, 47, {}};
  check_family("transformer:width=8,heads=2", prime, 2, {.samples = 3, .sequence_parallel = true});
}

/// A Sequential that is built anew for each rank, from one seed.
std::function<GraphPointer()> sequential(const std::function<torch::nn::Sequential()>& make) {
  return [make] {
    torch::manual_seed(4);
    GraphPointer graph = BuiltModel(make()).graph;
    graph->to(at::kDouble);
    return graph;
  };
}

TEST_CASE("a torch::nn::Sequential: its modules by type, options that rules must keep, padding and groups that they cannot divide") {
  using namespace torch::nn;  // NOLINT: the modules' names
  const auto build = sequential([] {
    return Sequential(Conv2d(Conv2dOptions(3, 8, 3).stride(2).padding(2)), BatchNorm2d(8), ReLU(ReLUOptions(true)),
                      Conv2d(Conv2dOptions(8, 8, 3).dilation(2).padding(torch::kSame)), GroupNorm(GroupNormOptions(4, 8).eps(0.1)), SiLU(),
                      Conv2d(Conv2dOptions(8, 8, 3).groups(2).padding(1)),
                      Conv2d(Conv2dOptions(8, 6, 3).padding(1).padding_mode(torch::kCircular)),
                      AdaptiveAvgPool2d(AdaptiveAvgPool2dOptions({2, 2})), Flatten(), Linear(24, 10), Tanh(), torch::nn::Dropout(0.0),
                      Linear(LinearOptions(10, 12).bias(false)), Sigmoid(), Linear(12, 12));
  });
  const ShardedModel model = check_step("sequential", build, sample_of(kImages, 5), 2);
  CHECK(table(model) == "0 channels out; 3 channels in; 6 whole; 7 channels out; 10 row; 13 column; 15 row");
  CHECK(reason_of(model, "6") == "its channels are in groups");
  CHECK(model.shards.contains("1.running_var"));
  CHECK_FALSE(model.shards.contains("1.num_batches_tracked"));
}

TEST_CASE("a divided output of a layer other than the logits is gathered") {
  using namespace torch::nn;  // NOLINT: the modules' names
  const auto build = sequential([] { return Sequential(Flatten(), Linear(216, 12), ReLU()); });
  const ShardedModel model = check_step("ends with ReLU", build, sample_of(kImages, 5), 2);
  CHECK(table(model) == "1 column");
  CHECK_FALSE(model.logits_divided);
}

TEST_CASE("a value that is read divided, whole and twice; an unused layer; a module with two names") {
  const auto build = [] {
    torch::manual_seed(4);
    auto graph = std::make_shared<LayerGraph>();
    const torch::nn::Linear twice(8, 8);
    const int flat = graph->add("flatten", "flatten", [](const LayerGraph::Inputs& in) { return in[0].flatten(1); });
    const int first = graph->add("first", "linear", torch::nn::Linear(216, 8), {flat});
    const int relu = graph->add("relu", "relu", [](const LayerGraph::Inputs& in) { return in[0].relu(); }, {first});
    const int row = graph->add("row", "linear", torch::nn::Linear(8, 8), {relu});
    const int sorted = graph->add("reverse", "reverse", [](const LayerGraph::Inputs& in) { return in[0].flip(1); }, {relu});
    const int sum = graph->add("sum", "add", [](const LayerGraph::Inputs& in) { return in[0] + in[1] + in[2]; }, {row, sorted, relu});
    const int once = graph->add("once", "linear", twice, {sum});
    graph->add("unused", "relu", [](const LayerGraph::Inputs& in) { return in[0].relu(); }, {once});
    const int again = graph->add("again", "linear", twice, {once});
    graph->add("output", "linear", torch::nn::Linear(8, 12), {again});
    graph->to(at::kDouble);
    return graph;
  };
  const ShardedModel model = check_step("graph", build, sample_of(kImages, 5), 2);
  CHECK(table(model) == "first column; row column; reverse whole; once column; again column; output row");
  CHECK((model.shards.at("once.weight").ranges == model.shards.at("again.weight").ranges));
}

TEST_CASE("two steps in single precision stay within rounding of the whole model; no gradients in evaluation") {
  const auto build = [] { return build_model("cnn:conv1=4,conv2=8,hidden=16", kImages, 7); };
  Sample sample = sample_of(kImages, 6);
  sample.input = sample.input.to(at::kFloat);
  check_step("float", build, sample, 2, {.tolerance = 1e-4});
  const GraphPointer whole = build();
  std::vector<GraphPointer> parts = {build(), build()};
  run_thread_ranks(2, [&](Group& group) {
    const torch::NoGradGuard no_grad;
    LayerGraph& graph = *parts[static_cast<size_t>(group.rank())];
    shard_graph(graph, group);
    expect(at::allclose(graph.forward(sample.input), whole->forward(sample.input), 1e-4, 1e-4), "evaluation");
  });
}

TEST_CASE("a class or an id out of range is refused; one rank changes nothing") {
  const GraphPointer alone = build_model("fc:hidden=8", kImages, 7);
  CHECK(shard_graph(*alone, Group()).shards.empty());
  std::vector<GraphPointer> parts = {build_model("lstm:width=6,hidden=10", kText, 7), build_model("lstm:width=6,hidden=10", kText, 7)};
  run_thread_ranks(2, [&](Group& group) {
    LayerGraph& graph = *parts[static_cast<size_t>(group.rank())];
    shard_graph(graph, group);
    const auto message = [](const std::function<void()>& call) -> std::string {
      try {
        call();
      } catch (const Error& error) {
        return error.code() == ErrorCode::kBadInput ? error.what() : "";
      }
      return "";
    };
    const at::Tensor ids = at::full({2, 12}, 48, at::kLong);
    expect(message([&] { graph.forward(ids); }).find("48, which is not a row of a table of 48") != std::string::npos, "id");
    const at::Tensor logits = at::zeros({2, 3});
    expect(message([&] { divided_cross_entropy(logits, at::full({2}, 6, at::kLong), group); }).find("is class 6, but the 2 ranks have") !=
               std::string::npos,
           "class");
    expect(message([&] { divided_cross_entropy(logits, at::zeros({3}, at::kLong), group); }) != "", "shapes");
  });
}

}  // namespace
}  // namespace cohort
