#include "cohort/parallel/batch_norm/convert_sync_batch_norm.h"

#include <ATen/autocast_mode.h>
#include <doctest/doctest.h>
#include <torch/torch.h>

#include <map>
#include <numeric>

#include "cohort/base/fail.h"
#include "cohort/models/layers/ghost_batch_norm.h"
#include "cohort/models/parts.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/threads.h"

namespace cohort {
namespace {

/// As users write them: typed members, a Sequential, a nested module, a layer without any tensor of its own.
struct BlockImpl : torch::nn::Module {
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d bn{nullptr};
  BlockImpl(int64_t from, int64_t to) {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 3).padding(1).bias(false)));
    bn = register_module("bn", torch::nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(to).momentum(std::nullopt)));
  }
  at::Tensor forward(const at::Tensor& x) { return at::relu(bn->forward(conv->forward(x))); }
};
TORCH_MODULE(Block);

struct UserModelImpl : torch::nn::Module {
  Block block{nullptr};
  torch::nn::Sequential tail{nullptr};
  torch::nn::BatchNorm1d bare{nullptr};
  UserModelImpl() {
    block = register_module("block", Block(2, 6));
    tail = register_module("tail", torch::nn::Sequential(torch::nn::Conv2d(6, 4, 3), torch::nn::BatchNorm2d(4), torch::nn::ReLU()));
    bare = register_module("bare", torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(4).affine(false).track_running_stats(false)));
  }
  at::Tensor forward(const at::Tensor& x) { return bare->forward(tail->forward(block->forward(x)).mean({2, 3})); }
};
TORCH_MODULE(UserModel);

/// A residual network with batch norm as models/ builds them.
std::shared_ptr<LayerGraph> residual_graph() {
  auto graph = std::make_shared<LayerGraph>();
  const Norm norm{"batch"};
  graph->set_sample_granularity(LayerGraph::kWholeBatch);
  add_conv(*graph, "stem", 2, 6, 3);
  const int stem = add_norm(*graph, "stem_norm", norm, 6);
  add_conv(*graph, "conv1", 6, 6, 3, 1, true, {stem});
  add_norm(*graph, "norm1", norm, 6);
  add_relu(*graph, "relu1");
  add_conv(*graph, "conv2", 6, 6, 3);
  const int branch = add_norm(*graph, "norm2", norm, 6);
  add_sum(*graph, "add", stem, branch);
  add_relu(*graph, "relu2");
  add_global_mean(*graph, "mean");
  add_linear(*graph, "output", 6, 4);
  return graph;
}

/// The same model on all ranks.
template <typename Make>
auto seeded(Make make) {
  const SeededDraws draws(5);
  return make();
}

using Values = std::map<std::string, at::Tensor>;

/// Trains `model` for three steps of plain gradient descent on this rank's samples; parameters and buffers at the end.
template <typename Model>
Values train(Model& model, const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& directions, Group group) {
  for (size_t step = 0; step < inputs.size(); ++step) {
    model->zero_grad();
    (model->forward(inputs[step]).to(at::kFloat) * directions[step]).sum().backward();
    at::NoGradGuard no_grad;
    for (const auto& item : model->named_parameters()) {
      at::Tensor gradient = item.value().grad().clone();
      if (gradient.scalar_type() != at::kFloat) fail(ErrorCode::kFailed, item.key(), " has a gradient of ", gradient.scalar_type());
      group.all_reduce_sum(gradient.view({-1}), "gradients");
      const_cast<at::Tensor&>(item.value()).sub_(gradient, 0.02);
    }
  }
  Values values;
  for (const auto& item : model->named_parameters()) values[item.key()] = item.value().detach().clone();
  for (const auto& item : model->named_buffers()) values[item.key()] = item.value().clone();
  return values;
}

/// The model of `make`, trained by ranks with `shares` samples of each step after conversion, ends as in one process with all of them.
template <typename Make>
void check_training(Make make, const std::vector<int64_t>& shares, int num_layers, double tolerance, bool bf16 = false) {
  torch::manual_seed(8);
  const int64_t total = std::accumulate(shares.begin(), shares.end(), int64_t{0});
  std::vector<at::Tensor> inputs, directions;
  for (int step = 0; step < 3; ++step) inputs.push_back(at::randn({total, 2, 8, 8})), directions.push_back(at::randn({total, 4}));
  const auto autocast = [&](bool on) {
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, on && bf16);
    at::autocast::clear_cache();
    at::autocast::set_autocast_cache_enabled(false);  // weights change inside of the scope
  };
  auto single = seeded(make);
  autocast(true);
  const Values expected = train(single, inputs, directions, Group());
  autocast(false);
  std::vector<Values> results(shares.size());
  run_thread_ranks(static_cast<int>(shares.size()), [&](Group& group) {
    auto model = seeded(make);
    const int converted = convert_sync_batch_norm(*model, group);
    if (converted != num_layers) fail(ErrorCode::kFailed, converted, " layers were converted");
    const auto rank = static_cast<size_t>(group.rank());
    const int64_t begin = std::accumulate(shares.begin(), shares.begin() + group.rank(), int64_t{0});
    std::vector<at::Tensor> my_inputs, my_directions;
    for (const at::Tensor& t : inputs) my_inputs.push_back(t.narrow(0, begin, shares[rank]));
    for (const at::Tensor& t : directions) my_directions.push_back(t.narrow(0, begin, shares[rank]));
    autocast(true);
    results[rank] = train(model, my_inputs, my_directions, group);
    autocast(false);
  });
  for (const auto& [name, value] : expected) {
    INFO(name);
    const double scale = value.to(at::kDouble).abs().max().template item<double>();
    for (const Values& result : results) {
      REQUIRE(result.count(name) == 1);
      CHECK((result.at(name) - value).to(at::kDouble).abs().max().template item<double>() <= tolerance * std::max(scale, 1.0));
      CHECK(at::equal(result.at(name), results[0].at(name)));
    }
    CHECK(results[0].size() == expected.size());
  }
}

TEST_CASE("a user's model trains as in one process, whatever holds its layers") {
  const auto make = [] { return UserModel(); };
  check_training(make, {3, 3}, 3, 2e-5);
  check_training(make, {4, 0, 2}, 3, 2e-5);
  check_training(make, {2, 2, 3, 2}, 3, 2e-5);
}

TEST_CASE("a LayerGraph trains as in one process and may be divided") {
  check_training(residual_graph, {3, 4}, 3, 2e-5);
  check_training(residual_graph, {2, 0, 5}, 3, 2e-5);
  check_training(residual_graph, {1, 2, 3, 1}, 3, 2e-5);
  run_thread_ranks(2, [](Group& group) {
    const auto graph = seeded(residual_graph);
    convert_sync_batch_norm(*graph, group);
    if (graph->sample_granularity() != 1) fail(ErrorCode::kFailed, "granularity ", graph->sample_granularity());
  });
}

TEST_CASE("under autocast the layers exchange too; gradients and statistics stay float") {
  check_training(residual_graph, {3, 4}, 3, 2e-2, /*bf16=*/true);
}

TEST_CASE("eval mode, clones and other models exchange nothing") {
  // Each rank alone would wait for its peer until the time-out if it exchanged.
  run_thread_ranks(2, [](Group& group) {
    auto model = seeded([] { return UserModel(); });
    auto plain = seeded([] { return UserModel(); });
    convert_sync_batch_norm(*model, group);
    if (group.rank() == 1) return group.barrier();
    const at::Tensor input = at::linspace(-1, 1, 3 * 2 * 8 * 8).view({3, 2, 8, 8});
    model->eval(), plain->eval();
    if (!at::equal(model->forward(input), plain->forward(input))) fail(ErrorCode::kFailed, "eval differs");
    plain->train();
    plain->forward(input);  // not converted
    model->train();
    torch::nn::InstanceNorm2d instance(torch::nn::InstanceNorm2dOptions(2).affine(true));
    instance->forward(input);
    GhostBatchNorm2d ghost(2, 2);
    if (convert_sync_batch_norm(*ghost, group) != 0) fail(ErrorCode::kFailed, "ghost batch norm was converted");
    ghost->forward(input);
    group.barrier();
  });
}

TEST_CASE("conversion is of a model: names stay, it can be repeated and undone") {
  run_thread_ranks(2, [](Group& group) {
    auto model = seeded([] { return UserModel(); });
    const auto names = [&] {
      std::vector<std::string> all = model->named_parameters().keys();
      const std::vector<std::string> buffers = model->named_buffers().keys();
      all.insert(all.end(), buffers.begin(), buffers.end());
      return all;
    };
    const std::vector<std::string> before = names();
    if (convert_sync_batch_norm(*model, group) != 3 || convert_sync_batch_norm(*model, group) != 3) fail(ErrorCode::kFailed, "not 3");
    if (names() != before) fail(ErrorCode::kFailed, "names changed");
    const at::Tensor input = at::linspace(-1, 1 + group.rank(), 3 * 2 * 8 * 8).view({3, 2, 8, 8});
    const auto same_everywhere = [&] {
      at::Tensor all = at::empty({2, 6});
      group.all_gather(all, model->block->bn->running_mean, "statistics");
      return at::equal(all[0], all[1]);
    };
    model->forward(input);
    if (!same_everywhere()) fail(ErrorCode::kFailed, "not converted");
    {
      const c10::InferenceMode inference;  // recomputing statistics is done like this
      model->forward(input);
    }
    if (!same_everywhere()) fail(ErrorCode::kFailed, "not converted in inference mode");
    if (convert_sync_batch_norm(*model, Group()) != 3) fail(ErrorCode::kFailed, "not undone");
    if (model->bare->weight.defined()) fail(ErrorCode::kFailed, "the name tag was left");
    auto plain = seeded([] { return UserModel(); });
    const at::Tensor mine = model->forward(input);
    if (same_everywhere()) fail(ErrorCode::kFailed, "still exchanges");
    if (!at::equal(mine, plain->forward(input))) fail(ErrorCode::kFailed, "differs from a model that was never converted");
  });
}

TEST_CASE("a single layer: owned by a shared_ptr, or refused") {
  torch::nn::BatchNorm2d owned(3);
  CHECK(convert_sync_batch_norm(*owned, Group()) == 1);
  torch::nn::BatchNorm2dImpl on_the_stack(3);
  CHECK_THROWS_WITH_AS(convert_sync_batch_norm(on_the_stack, Group()),
                       "sync batch norm: the layer torch::nn::BatchNorm2dImpl is not owned by a shared_ptr; make it with "
                       "torch::nn::BatchNorm2d(...)",
                       Error);
}

TEST_CASE("layers come and go without being taken for one another") {
  run_thread_ranks(2, [](Group& group) {
    for (int i = 0; i < 50; ++i) {
      torch::nn::BatchNorm1d layer(2);
      convert_sync_batch_norm(*layer, group);
    }
    // Addresses of the layers above are free again; nothing here may exchange.
    if (group.rank() == 0) {
      for (int i = 0; i < 50; ++i) torch::nn::BatchNorm1d(2)->forward(at::ones({3, 2}));
    }
    group.barrier();
  });
}

TEST_CASE("small batches: from what size, and what to do") {
  UserModel model;
  const auto warning = [&](int64_t samples) { return small_batch_warning(*model, {.samples = samples}); };
  CHECK(warning(16) == "");
  CHECK(warning(15).find("from 15 samples; below 16") != std::string::npos);
  CHECK(warning(1).find("1 sample;") != std::string::npos);
  CHECK(warning(4).find("--sync-batch-norm") != std::string::npos);
  CHECK(small_batch_warning(*torch::nn::Linear(2, 2), {.samples = 1}) == "");
  const std::string ghost = small_batch_warning(*GhostBatchNorm2d(2, 8), {.samples = 8});
  CHECK(ghost.find("ghost batch norm") == 0);
  CHECK(ghost.find("--sync-batch-norm") == std::string::npos);
}

TEST_CASE("small batches: 64 samples on 32 workers, and what each way out costs") {
  const torch::nn::BatchNorm2d layer(4);
  const std::string text =
      small_batch_warning(*layer, {.samples = 2, .global_batch = 64, .num_workers = 32, .num_micro_batches = 1, .exchange_seconds = 0.003});
  CAPTURE(text);
  for (const char* part :
       {"from 2 samples (a batch of 64 over 32 workers)", "At this batch 4 workers would do",
        "--sync-batch-norm (2 small exchanges a step, about 6.0 ms)", "ghost=16 (no exchange; at this batch samples for 4 workers)",
        "norm=group", "--global-batch 512 (8 times the samples"})
    CHECK_MESSAGE(text.find(part) != std::string::npos, part);
  const std::string pieces = small_batch_warning(*layer, {.samples = 4, .global_batch = 64, .num_workers = 2, .num_micro_batches = 8});
  CHECK(pieces.find("would do") == std::string::npos);  // One worker has 8 samples a micro-batch, which is too few too.
  CHECK(pieces.find("--global-batch 256 (4 times") != std::string::npos);
  const std::string alone = small_batch_warning(*layer, {.samples = 8, .global_batch = 64, .num_workers = 1, .num_micro_batches = 8});
  CHECK(alone.find("At this batch 4 micro-batches would do") != std::string::npos);
  CHECK(alone.find("--sync-batch-norm") == std::string::npos);
}

}  // namespace
}  // namespace cohort
